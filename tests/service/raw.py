"""The server around a tiny application, and clients that write bytes to its socket as they like."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from segops_service import Settings
from segops_service.server import Server, serve

LARGE_ANSWER = 16 * 2**20  # more than sockets hold


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Echo:
    """Answers with length and checksum of the body, and tells what it went through.

    By path: ``/refuse`` reads nothing, ``/late`` waits before it reads, ``/large`` answers with
    `LARGE_ANSWER` bytes, ``/hold`` reads nothing and answers when ``go`` is set, ``/sleep`` never
    answers. The header ``X-Messages`` says in how many messages the body came.
    """

    def __init__(self) -> None:
        self.events: Queue[str] = Queue()
        self.headers: list[tuple[bytes, bytes]] = []
        self.go = threading.Event()

    def next_event(self) -> str:
        return self.events.get(timeout=5)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        self.headers = scope["headers"]
        self.events.put("begun")
        path = scope["path"]
        if path == "/refuse":
            await _answer(send, 413, b"refused")
        elif path == "/large":
            await _answer(send, 200, bytes(LARGE_ANSWER))
        elif path == "/hold":
            await self._hold(send)
        elif path == "/sleep":
            await asyncio.sleep(60)
        else:
            await asyncio.sleep(0.7 if path == "/late" else 0)
            await self._echo(receive, send)
        self.events.put("ended")

    async def _echo(self, receive: Any, send: Any) -> None:
        length, checksum, messages, more = 0, 0, 0, True
        while more:
            try:
                message = await receive()
            except MemoryError:
                await _answer(send, 507, b"no memory")
                return
            if message["type"] == "http.disconnect":
                self.events.put("disconnected")
                return
            body, more = message["body"], message["more_body"]
            length, checksum = length + len(body), zlib.crc32(body, checksum)
            messages += 1
        await _answer(send, 200, f"{length} {checksum}".encode(), messages=messages)

    async def _hold(self, send: Any) -> None:
        await asyncio.to_thread(self.go.wait, 10)
        await _answer(send, 200, b"held")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


async def _answer(send: Any, status: int, body: bytes, messages: int = 0) -> None:
    headers = [
        (b"content-length", str(len(body)).encode()),
        (b"x-messages", str(messages).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def echoed(body: bytes) -> bytes:
    """Content of the application's answer to a body."""
    return f"{len(body)} {zlib.crc32(body)}".encode()


def head(path: str = "/", length: int = 0, *fields: str, method: str = "POST") -> bytes:
    """Head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: here", f"Content-Length: {length}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class Response:
    """An answer; names and values of the headers are in small letters."""

    status: int
    headers: dict[str, str]
    content: bytes


class Client:
    """A connection."""

    def __init__(
        self, port: int, *, receive_buffer: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._unread = b""

    def send(self, *pieces: bytes) -> None:
        self.socket.sendall(b"".join(pieces))

    def drip(self, piece: bytes, every: float, seconds: float) -> None:
        """Send a piece again and again, until the time is over or the server has closed."""
        end = time.monotonic() + seconds
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end and not self.has_answer:
                self.send(piece)
                time.sleep(every)

    @property
    def has_answer(self) -> bool:
        """Whether there is something to read, be it the end."""
        self.socket.setblocking(False)
        try:
            return len(self.socket.recv(1, socket.MSG_PEEK)) >= 0
        except BlockingIOError:
            return False
        finally:
            self.socket.settimeout(10)

    def response(self, method: str = "POST") -> Response:
        """Read one answer, and nothing behind it."""
        lines = self._until(b"\r\n\r\n").decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        while len(self._unread) < length:
            self._receive()
        content, self._unread = self._unread[:length], self._unread[length:]
        return Response(int(lines[0].split()[1]), headers, content)

    def _until(self, end: bytes) -> bytes:
        while end not in self._unread:
            self._receive()
        found, _, self._unread = self._unread.partition(end)
        return found

    def _receive(self) -> None:
        received = self.socket.recv(2**20)
        if not received:
            raise ConnectionError(f"closed behind {self._unread!r:.100}")
        self._unread += received

    def is_closed_within(self, seconds: float) -> bool:
        """Whether the server closes, and sends nothing before."""
        assert not self._unread
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(10)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@contextmanager
def listening(
    app: Any, on_drain: Callable[[], None] = lambda: None, **settings: Any
) -> Iterator[Server]:
    """Run the server with an application in a thread."""
    server = Server(app, Settings(port=0, **settings), on_drain)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.002)
        yield server
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    settings = Settings()
    sys.exit(serve(Server(Echo(), settings, lambda: print("draining", flush=True)), settings))
