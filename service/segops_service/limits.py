"""Middleware that bounds request bodies before anything reads them."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segops_service.errors import BodyTooLargeError
from segops_service.problems import BODY_TOO_LARGE, problem_response


class BodyLimit:
    """Refuse bodies over a limit: by the declared length at once, else by the running total.

    Parameters
    ----------
    app
        The application inside.
    max_bytes
        The largest body that it may see.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_bytes:
            response = problem_response(BODY_TOO_LARGE, _detail(self.max_bytes))
            await response(scope, receive, send)
            return
        await self.app(scope, _Total(receive, self.max_bytes).receive, send)


class _Total:
    """Running total of one request's body."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._total = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._total += len(message.get("body", b""))
        if self._total > self._max_bytes:
            raise BodyTooLargeError(_detail(self._max_bytes))
        return message


def _detail(max_bytes: int) -> str:
    return f"the body is over the limit of {max_bytes} bytes"
