"""Real servers on real sockets: one that answers from a script, and the service itself."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack_numpy
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from segops_client import Client, ConnectionFailed

MSGPACK = "application/vnd.msgpack"


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """Decoded by an implementation that is not ours."""
        return msgpack_numpy.unpackb(self.body)


@dataclass
class Script:
    """An ASGI application that keeps what it receives and gives its answers in turn.

    The last answer is given again and again; an answer may be a function that makes one.
    """

    answers: list[Response | Callable[[], Response]]
    received: list[Received] = field(default_factory=list)

    async def __call__(self, scope, receive, send) -> None:
        request = Request(scope, receive)
        headers = dict(request.headers)
        self.received.append(
            Received(request.method, request.url.path, headers, await request.body())
        )
        answer = self.answers[min(len(self.received), len(self.answers)) - 1]
        await (answer if isinstance(answer, Response) else answer())(scope, receive, send)

    @property
    def fields(self) -> dict[str, Any]:
        (only,) = self.received
        return only.fields


@dataclass
class Stage:
    """An ASGI application that is the script put on last."""

    url: str = ""
    app: Any = None

    def play(self, app: Any) -> str:
        self.app = app
        return self.url

    async def __call__(self, scope, receive, send) -> None:
        await self.app(scope, receive, send)


def packed(answer: Any) -> Response:
    return Response(msgpack_numpy.packb(answer), media_type=MSGPACK)


def problem(status: int, slug: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    document = {"type": f"urn:segops:problem:{slug}", "title": "t", "status": status, "detail": "d"}
    return JSONResponse(
        document | more, status, headers=headers, media_type="application/problem+json"
    )


@contextlib.contextmanager
def serve(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an application on a socket, in a thread."""
    config = uvicorn.Config(app, port=port, lifespan="off", log_level="critical", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def service(**variables: str) -> Iterator[str]:
    """Run the service itself, in a process of its own, from when it is ready."""
    port = free_port()
    environment = os.environ | {
        "SEGOPS_PLATFORM": "cpu",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **variables,
    }
    command = [sys.executable, "-m", "segops_service", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], patience: float = 120) -> None:
    end = time.monotonic() + patience
    with Client(url) as client:
        while time.monotonic() < end:
            assert process.poll() is None, "the service ended while it started"
            with contextlib.suppress(ConnectionFailed):
                if client.health().ready:
                    return
            time.sleep(0.1)
    raise TimeoutError("the service did not become ready")
