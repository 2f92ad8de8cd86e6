"""One request to an ASGI application, with nothing between."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Scope

Header = tuple[bytes, bytes]


@dataclass
class Reply:
    """What an application sent."""

    messages: list[Message] = field(default_factory=list)
    received: int = 0

    @property
    def status(self) -> int:
        """Status of the answer; 0 if there is none."""
        return self.messages[0]["status"] if self.messages else 0

    @property
    def body(self) -> bytes:
        """Body of the answer."""
        return b"".join(bytes(message["body"]) for message in self.messages[1:])

    def header(self, name: bytes) -> str | None:
        """Value of a header that is there at most once."""
        values = [value.decode() for key, value in self.messages[0]["headers"] if key == name]
        assert len(values) <= 1, values
        return values[0] if values else None


def scope(path: str = "/", method: str = "GET", headers: Sequence[Header] = ()) -> Scope:
    """Scope of a request as uvicorn makes it."""
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers],
        "state": {},
    }


def ask(
    app: ASGIApp, path: str = "/", *, method: str = "GET", headers: Sequence[Header] = ()
) -> Reply:
    """Send a request without a body and return what comes."""
    reply = Reply()
    asyncio.run(serve(app, scope(path, method, headers), reply))
    return reply


async def serve(app: ASGIApp, about: Scope, reply: Reply, bodies: Sequence[bytes] = (b"",)) -> None:
    """Run an application on a request whose body comes in parts, and collect what it sends."""
    parts = [*bodies]

    async def receive() -> Message:
        reply.received += 1
        if not parts:
            return {"type": "http.disconnect"}
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        reply.messages.append(message)

    await app(about, receive, send)
