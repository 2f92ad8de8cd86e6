"""HTTP/1.1 connections that are hard to abuse: uvicorn's own, held to limits of size and time.

uvicorn bounds neither the head of a request nor the time that a head, a body or the reading of an
answer may take. Here a connection keeps track of what it waits for, and :meth:`Connections.sweep`,
called a few times a second, ends those that have waited for too long.
"""

import asyncio
import fcntl
import logging
import sys
import termios
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from segops_service import upload
from segops_service.problems import (
    HEAD_TOO_LARGE,
    MALFORMED_REQUEST,
    OVERLOADED,
    REQUEST_TIMEOUT,
    Problem,
    problem_response,
)
from segops_service.settings import Settings

SWEEP_SECONDS = 0.25
"""How often the connections are looked at."""

LINGER_SECONDS = 0.5
"""How long a connection whose end is decided still takes what is on its way."""

_SMALL = 64 * 1024
"""Up to here one more copy costs less than one more system call."""

_MOST_AHEAD = 100
"""Requests that may wait for another's answer: each takes a hundred times the bytes that it is."""

logger = logging.getLogger(__name__)

_NOWHERE: deque[tuple[bytes, bytes]] = deque(maxlen=0)


class Connections(ServerState):
    """What the connections of one server share.

    Parameters
    ----------
    settings
        The limits that they keep.
    on_refusal
        Called with the slug of the problem where a connection refuses what the application then
        never sees, or sees no end of.
    """

    def __init__(self, settings: Settings, on_refusal: Callable[[str], None]) -> None:
        super().__init__()
        self.settings = settings
        self.on_refusal = on_refusal
        self.is_draining = False
        self.refused = 0

    def all(self) -> list["Connection"]:
        """Return the connections that are open and were not refused."""
        return [each for each in self.connections if isinstance(each, Connection)]

    def sweep(self) -> None:
        """End the connections that have waited for their clients for too long."""
        for connection in self.all():
            connection.check()


class _Part(Enum):
    """What of a request a connection waits for."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


@dataclass
class _Backlog:
    """Bytes of an answer that the client has yet to read."""

    since: float
    at_first: int
    left: int


class _HeadTooLargeError(Exception):
    """Stops the parser."""


class _TunnelError(Exception):
    """Stops the parser."""


class _TooFarAheadError(Exception):
    """Stops the parser."""


class Connection(HttpToolsProtocol):
    """One connection; its parameters are those of uvicorn's."""

    server_state: Connections
    timeout_keep_alive: float  # type: ignore[assignment]

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings = server_state.settings
        self._part = _Part.NOTHING
        self._since = 0.0
        self._received = 0
        self._unparsed = 0
        self._upload: upload.Upload | None = None
        self._running: RequestResponseCycle | None = None
        self._head: bytes | None = None
        self._backlog: _Backlog | None = None
        self._is_refused = False
        self._is_deaf = False

    # The transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or refuse at once."""
        super().connection_made(transport)
        self._await(_Part.HEAD)
        if len(self.connections) > self._settings.max_connections:
            self._refuse(
                OVERLOADED,
                f"{self._settings.max_connections} connections are open, and no more may be",
                {"retry-after": "1"},
            )
        elif self.server_state.is_draining:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application that its client has gone."""
        self._disconnect()
        if self._upload is not None:
            self._upload.release()
        self._upload = None
        for cycle in (self._running, self.cycle):
            if cycle is not None:  # no circle is left that only a garbage collection would free
                cycle.transport = self.transport
                vars(cycle).pop("receive", None)
        self._head = b""
        self.server_state.refused -= self._is_refused
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        if self._part is _Part.NOTHING:
            self._await(_Part.HEAD)
        self._unparsed += len(data)  # the parser's callbacks set it back
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error)
        else:
            if self._unparsed > self._settings.max_header_bytes:
                self._refuse_head()
            elif self._upload is not None:
                self.transport.set_protocol(self._upload)

    def body_received(self, nbytes: int) -> None:
        """Count bytes of a body."""
        self._unset_keepalive_if_required()
        self._received += nbytes

    def upload_received(self) -> None:
        """Take over again from an upload that is whole."""
        self.transport.set_protocol(self)
        self._renew_parser()
        self.on_message_complete()

    # The parser's side

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        if self._part is _Part.NOTHING:
            self._await(_Part.HEAD)

    def on_headers_complete(self) -> None:
        """Start the application, which may answer before the body is there."""
        if self._unparsed > self._settings.max_header_bytes:
            self._check_head_size()
        if self.parser.get_method() == b"CONNECT":
            raise _TunnelError
        if len(self.pipeline) >= _MOST_AHEAD:
            raise _TooFarAheadError
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.cycle.transport = self  # type: ignore[assignment]  # for `write`, `close`, `is_closing`
        self._unparsed = self._received = 0
        self._await(_Part.BODY)
        if self.server_state.is_draining:
            self.cycle.keep_alive = False
        if self._running is self.cycle:  # a request that waits for another's answer is not read yet
            self._expect_upload()
        self.headers = _NOWHERE  # type: ignore[assignment]  # for trailers, which may be endless

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unparsed = 0
        self._received += len(body)
        if self._upload is None:
            super().on_body(body)
        else:
            self._upload.store(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self.parser.should_upgrade():
            return
        self._unparsed = 0
        self._upload = None
        self._part = _Part.NOTHING
        super().on_message_complete()
        if self.cycle.response_complete:  # and uvicorn set its timer too early
            self._close_when_idle()

    # The application's side

    def write(self, data: bytes) -> None:
        """Write a part of the answer; its head goes out together with what follows at once."""
        if self._head is None and self._is_started:
            self._head = data
            self.loop.call_soon(self._flush)
        elif self._head and len(data) <= _SMALL:
            head, self._head = self._head, b""
            self.transport.write(head + data)
        else:
            self._flush()
            self.transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self.transport.is_closing()

    def close(self) -> None:
        """Close behind the answer, but not on a client that is still sending."""
        self._flush()
        if self._part is _Part.BODY and not self.transport.is_closing():
            self._linger(self.transport.close)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        self._flush()
        if self._upload is not None:
            self._upload.release()
        if not self._is_deaf:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._head = None
        super()._start_asgi_task(cycle, app)

    # The server's side

    def shutdown(self) -> None:
        """Answer what is here or on its way, and close."""
        self.timeout_keep_alive = LINGER_SECONDS
        if not self._is_answering:
            if not self._unparsed:
                self._close_when_idle()
        elif not self.cycle.response_started:
            self.cycle.keep_alive = False

    def cut_off(self) -> None:
        """Close now; the application sees that the client has gone."""
        self._disconnect()
        self.transport.abort()

    def check(self) -> None:
        """Close if the client is too slow."""
        now = self.loop.time()
        self._check_backlog(now)
        if self._is_deaf or self.transport.is_closing():
            return
        if self._part is _Part.HEAD:
            self._check_head(now)
        elif self._part is _Part.BODY:
            self._check_body(now)

    def timeout_keep_alive_handler(self) -> None:
        """Close the idle connection."""
        super().timeout_keep_alive_handler()
        if self.scheme == "https" and not self.transport.get_write_buffer_size():
            # TLS would wait for the goodbye of a client that has nothing to say.
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _check_head(self, now: float) -> None:
        if self._is_answering or now - self._since <= self._settings.header_seconds:
            return
        if self._unparsed:
            limit = self._settings.header_seconds
            self._refuse(REQUEST_TIMEOUT, f"the head did not arrive within {limit} s")
        else:
            self.timeout_keep_alive_handler()

    def _check_body(self, now: float) -> None:
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._since += SWEEP_SECONDS  # it is the server that waits
        elif not self._is_too_slow(self._received, now - self._since):
            pass
        elif self.cycle.response_complete:
            self.transport.close()
        else:
            rate = self._settings.transfer_bytes_per_second
            self._refuse(REQUEST_TIMEOUT, f"the body must keep {rate} bytes a second")

    def _check_backlog(self, now: float) -> None:
        known = self._backlog
        if not self.transport.get_write_buffer_size():
            self._backlog = None
            return
        left = self._unread()
        if known is None or left > known.left:  # the application has written more
            self._backlog = _Backlog(now, left, left)
        else:
            known.left = left
            if self._is_too_slow(known.at_first - left, now - known.since):
                self.cut_off()

    def _unread(self) -> int:
        """Bytes that wait here and in the kernel, which takes them from here by the megabyte."""
        fd = self.transport.get_extra_info("socket").fileno()
        queued = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _is_too_slow(self, moved: int, seconds: float) -> bool:
        counted = seconds - self._settings.transfer_grace_seconds
        return moved < counted * self._settings.transfer_bytes_per_second

    # Parts of the above

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    @property
    def _is_started(self) -> bool:
        return self._running is not None and self._running.response_started

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.transport.write(head)

    def _await(self, part: _Part) -> None:
        self._part = part
        self._since = self.loop.time()

    def _close_when_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _expect_upload(self) -> None:
        declared = next((int(v) for name, v in self.headers if name == b"content-length"), 0)
        if upload.SMALLEST <= declared <= self._settings.max_body_bytes:
            self._upload = upload.Upload(self, declared)
            self.cycle.receive = self._upload.receive  # type: ignore[assignment,method-assign]

    def _check_head_size(self) -> None:
        """Tell the head from what has arrived behind it."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._settings.max_header_bytes:
            raise _HeadTooLargeError

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which takes what comes behind an offered upgrade not to be HTTP."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                head = self._head_without_upgrade()
                self._renew_parser()
                self.parser.feed_data(head)
                rest = rest[upgrade.args[0] :]
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _refuse_unparsed(self, error: httptools.HttpParserError) -> None:
        if isinstance(error.__context__, _HeadTooLargeError):
            self._refuse_head()
        elif isinstance(error.__context__, _TunnelError):
            self._refuse(MALFORMED_REQUEST, "this is no proxy")
        elif isinstance(error.__context__, _TooFarAheadError):
            self._refuse(
                OVERLOADED, f"over {_MOST_AHEAD} requests were sent ahead of their answers"
            )
        else:
            self._refuse(MALFORMED_REQUEST, "what was sent cannot be read as HTTP/1.1")

    def _refuse_head(self) -> None:
        limit = self._settings.max_header_bytes
        self._refuse(HEAD_TOO_LARGE, f"the head is over the limit of {limit} bytes")

    def _refuse(
        self, problem: Problem, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer in the application's place, if its answer has not begun, and close."""
        can_answer = self._can_answer and not self.transport.is_closing()
        self._disconnect()
        self._is_refused = True
        self.server_state.on_refusal(problem.slug)
        logger.info("a request is refused as %s: %s", problem.slug, detail)
        self.connections.discard(self)
        self.server_state.refused += 1
        if not can_answer or self.server_state.refused > self._settings.max_connections:
            self.transport.abort()
            return
        self.transport.write(self._written(problem, detail, headers or {}))
        self._linger(self.transport.abort)

    def _linger(self, end: Callable[[], None]) -> None:
        """End soon: at once could reset the connection before the client has read its answer."""
        self._is_deaf = True
        self.transport.set_protocol(self)  # in place of an upload
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, end)

    @property
    def _can_answer(self) -> bool:
        if not self._is_answering:
            return True
        is_its_body = self._part is _Part.BODY and self._running is self.cycle
        return is_its_body and not self.cycle.response_started

    def _written(self, problem: Problem, detail: str, headers: Mapping[str, str]) -> bytes:
        response = problem_response(problem, detail, headers={**headers, "connection": "close"})
        fields = [*self.server_state.default_headers, *response.raw_headers]
        lines = [name + b": " + value + b"\r\n" for name, value in fields]
        return b"".join([STATUS_LINE[problem.status], *lines, b"\r\n", response.body])

    def _disconnect(self) -> None:
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()
