"""HTTP as the programs here speak it: requests as bytes made beforehand, answers with a length."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from segops_client import wire

MSGPACK = wire.MEDIA_TYPE
JSON = "application/json"
_BUFFER = 2**20


class LostAnswerError(Exception):
    """The connection ended before a whole answer had come."""


@dataclass(frozen=True)
class Answer:
    """One answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_last(self) -> bool:
        """Whether the server closes the connection behind it."""
        return self.headers.get("connection", "").lower() == "close"


def request(
    path: str, body: bytes = b"", media_type: str = MSGPACK, method: str = "POST", **headers: str
) -> bytes:
    """Return the bytes of a request; an underscore in a header's name stands for a hyphen."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    if method == "POST":
        lines += [f"content-type: {media_type}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def parse_head(head: bytes) -> Answer:
    """Read status and headers off the head of an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Answer(int(first.split(" ", 2)[1]), headers)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one whole answer.

    Raises
    ------
    LostAnswerError
        If the connection ends before.
    """
    head = b""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        answer = parse_head(head)
        body = await reader.readexactly(int(answer.headers["content-length"]))
    except asyncio.IncompleteReadError as error:
        what = "its body" if head else "its head"
        raise LostAnswerError(f"ended {len(error.partial)} bytes into {what}") from error
    except OSError as error:
        raise LostAnswerError(str(error)) from error
    except (KeyError, ValueError, IndexError) as error:
        raise LostAnswerError(f"cannot be read: {head[:200]!r}") from error
    return Answer(answer.status, answer.headers, body)


class Connection:
    """A connection that is opened when it is needed and kept while the server keeps it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> bool:
        """Connect, unless the connection still stands; return whether it is a new one."""
        if self._streams is not None:
            reader, writer = self._streams
            if not reader.at_eof() and not writer.is_closing():
                return False
            self.close()
        self._streams = await asyncio.open_connection(*self._address, limit=_BUFFER)
        return True

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return reader and writer of an open connection."""
        await self.open()
        assert self._streams is not None
        return self._streams

    async def exchange(self, message: bytes) -> Answer:
        """Send a request and read its answer.

        Raises
        ------
        OSError
            If no connection can be had.
        LostAnswerError
            If it ends before a whole answer has come.
        """
        reader, writer = await self.streams()
        writer.write(message)
        try:
            answer = await read_answer(reader)
        except BaseException:
            self.close()
            raise
        if answer.is_last:
            self.close()
        return answer

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection: in order, or at once with a reset and what was sent cut off."""
        if self._streams is None:
            return
        _, writer = self._streams
        if at_once:
            writer.transport.abort()
        else:
            writer.close()
        self._streams = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
