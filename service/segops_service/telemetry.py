"""Middleware that gives each request an id, a line in the log and a place in the metrics."""

import random
import re
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segops_service import logs
from segops_service.exchange import Exchange, attach
from segops_service.metrics import Metrics
from segops_service.problems import HANG_UP, INTERNAL

_HEADER = b"x-request-id"
_FITS = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Telemetry:
    """Middleware that keeps the record of each request, and tells of it once when it has ended.

    An error that nobody foresaw is logged here with its traceback, and goes no further where the
    client has an answer already.

    Parameters
    ----------
    app
        The application inside, with its handling of such errors.
    metrics
        Where requests are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(_request_id(scope))
        attach(scope, exchange)
        wires = _Wires(exchange, receive, send)
        unforeseen: Exception | None = None
        try:
            await self.app(scope, wires.receive, wires.send)
        except Exception as error:
            if not wires.is_broken and not isinstance(error, ClientDisconnect):
                unforeseen = error
                if not exchange.status:
                    raise
        finally:
            if unforeseen is not None:
                exchange.problem = INTERNAL.slug
            elif not wires.is_complete:
                exchange.problem = HANG_UP
            self._tell(scope, exchange, unforeseen)

    def _tell(self, scope: Scope, exchange: Exchange, error: Exception | None) -> None:
        seconds = perf_counter() - exchange.began
        self._metrics.request(exchange, exchange.problem or "ok", seconds)
        logs.request_ended(scope, exchange, seconds, error)


class _Wires:
    """What one request receives and sends, noted in its record."""

    __slots__ = ("_exchange", "_receive", "_send", "is_broken", "is_complete")

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._exchange = exchange
        self._receive = receive
        self._send = send
        self.is_broken = False
        self.is_complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._exchange.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = self._start(message)
        try:
            await self._send(message)
        except (OSError, ClientDisconnect):
            self.is_broken = True
            raise
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            self._exchange.bytes_out += body.nbytes if isinstance(body, memoryview) else len(body)
            self.is_complete = not message.get("more_body", False)

    def _start(self, message: Message) -> Message:
        self._exchange.status = message["status"]
        own = (_HEADER, self._exchange.request_id.encode())
        return {**message, "headers": [*message.get("headers", ()), own]}


def _request_id(scope: Scope) -> str:
    """Return the id that the client gave if it is a plain one, else a new one."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            if _FITS.fullmatch(value):
                given: str = value.decode()
                return given
            break
    return f"{random.getrandbits(64):016x}"
