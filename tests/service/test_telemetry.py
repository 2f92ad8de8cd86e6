"""Each request has an id, one line and one count, however it ends."""

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from segops_client import wire
from segops_service import Engine, Settings, create_app
from segops_service.admission import Admission
from segops_service.exchange import exchange_of
from segops_service.logs import RequestLine
from segops_service.metrics import Metrics
from segops_service.problems import OVERLOADED, problem_response
from segops_service.snapshot import EngineSnapshot
from segops_service.telemetry import Telemetry
from tests.service import asgi
from tests.service.helpers import MSGPACK, case, serving
from tests.service.snapshots import Still

REQUEST_ID = b"x-request-id"


class Told(Telemetry):
    """The middleware, and what it told the metrics."""

    def __init__(self, app: ASGIApp) -> None:
        self.metrics = Metrics(Still(), Admission(1, 1))
        super().__init__(app, self.metrics)

    @property
    def outcomes(self) -> dict[str, float]:
        """Requests counted by outcome."""
        text = self.metrics.render().decode()
        found = re.findall(r'segops_requests_total\{.*outcome="([^"]*)".*\} (.*)', text)
        return {outcome: float(count) for outcome, count in found}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "segops_service")

    def of_requests() -> list[logging.LogRecord]:
        return [record for record in caplog.records if isinstance(record.msg, RequestLine)]

    return of_requests


async def start(send: Send, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})


async def body(send: Send, part: Any, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})


@pytest.mark.parametrize("given", [b"a", b"0b8f-7.c_D", b"x" * 128])
def test_a_plain_request_id_is_kept(given: bytes) -> None:
    reply = asgi.ask(Told(PlainTextResponse("")), headers=[(REQUEST_ID, given)])
    assert reply.header(REQUEST_ID) == given.decode()


@pytest.mark.parametrize(
    "given", [b"", b"x" * 129, b"a b", b"a\nb", b"a\n", b'"', b"{}", b"\xff", "é".encode()]
)
def test_any_other_request_id_is_replaced(given: bytes) -> None:
    reply = asgi.ask(Told(PlainTextResponse("")), headers=[(REQUEST_ID, given)])
    assert re.fullmatch("[0-9a-f]{16}", reply.header(REQUEST_ID) or "")


def test_ids_that_are_made_differ() -> None:
    app = Told(PlainTextResponse(""))
    assert len({asgi.ask(app).header(REQUEST_ID) for _ in range(100)}) == 100


def test_the_answer_is_noted_with_its_bytes(lines: Any) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"abc"
        await start(send, 201)
        await body(send, b"12345", more=True)
        await body(send, memoryview(bytes(80)).cast("d"))

    told, reply = Told(app), asgi.Reply()
    asyncio.run(asgi.serve(told, asgi.scope("/here", "PUT"), reply, [b"abc"]))
    (record,) = lines()
    line = record.msg
    assert (line.method, line.path, line.status) == ("PUT", "/here", 201)
    assert (line.bytes_in, line.bytes_out, line.problem) == (3, 85, "")
    assert line.request_id == reply.header(REQUEST_ID)
    assert reply.header(b"a") == "b"
    assert told.outcomes == {"ok": 1}


def test_an_answer_that_is_sent_again_has_one_id() -> None:
    response = PlainTextResponse("the same object")
    told = Told(response)
    assert asgi.ask(told).header(REQUEST_ID) != asgi.ask(told).header(REQUEST_ID)


def test_a_problem_is_the_outcome(lines: Any) -> None:
    told = Told(problem_response(OVERLOADED, "full"))
    assert asgi.ask(told).status == 429
    assert [record.msg.problem for record in lines()] == ["overloaded"]
    assert told.outcomes == {"overloaded": 1}


async def _leaves_in_the_upload(_: Scope, __: Receive, ___: Send) -> None:
    raise ClientDisconnect


async def _is_cancelled(_: Scope, __: Receive, ___: Send) -> None:
    raise asyncio.CancelledError


async def _is_cancelled_in_the_answer(_: Scope, __: Receive, send: Send) -> None:
    await start(send)
    await body(send, b"part", more=True)
    raise asyncio.CancelledError


async def _gives_up(_: Scope, __: Receive, send: Send) -> None:
    await start(send)


@pytest.mark.parametrize(
    "app", [_leaves_in_the_upload, _is_cancelled, _is_cancelled_in_the_answer, _gives_up]
)
def test_a_hang_up_is_told_once_and_is_no_error(app: ASGIApp, lines: Any) -> None:
    told = Told(app)
    try:
        asgi.ask(told)
    except asyncio.CancelledError:
        assert app in (_is_cancelled, _is_cancelled_in_the_answer)
    assert told.outcomes == {"hang-up": 1}
    assert [(record.levelname, record.msg.problem) for record in lines()] == [("INFO", "hang-up")]


def test_a_connection_that_breaks_in_the_answer_is_a_hang_up(lines: Any) -> None:
    told = Told(PlainTextResponse("lost"))

    async def send(_: Any) -> None:
        raise BrokenPipeError

    async def run() -> None:
        await told(asgi.scope(), asgi.scope, send)  # type: ignore[arg-type]

    asyncio.run(run())
    assert told.outcomes == {"hang-up": 1}
    assert [record.levelname for record in lines()] == ["INFO"]


def test_a_cancellation_after_the_answer_takes_nothing_from_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("")(scope, receive, send)
        raise asyncio.CancelledError

    told = Told(app)
    with pytest.raises(asyncio.CancelledError):
        asgi.ask(told)
    assert told.outcomes == {"ok": 1}


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_unforeseen_error_is_logged_with_its_traceback(is_answered: bool, lines: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if is_answered:
            await PlainTextResponse("sorry", 500)(scope, receive, send)
        raise KeyError("nobody foresaw this")

    told = Told(app)
    if is_answered:
        assert asgi.ask(told).status == 500
    else:
        with pytest.raises(KeyError):
            asgi.ask(told)
    (record,) = lines()
    assert (record.levelname, record.msg.problem) == ("ERROR", "internal")
    assert record.exc_info[0] is KeyError
    assert told.outcomes == {"internal": 1}


def test_a_file_that_is_missing_is_no_hang_up() -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise FileNotFoundError

    told = Told(app)
    with pytest.raises(FileNotFoundError):
        asgi.ask(told)
    assert told.outcomes == {"internal": 1}


def test_what_is_no_request_passes() -> None:
    passed = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        passed.append((scope["type"], exchange_of(scope).request_id))

    told = Told(app)
    asyncio.run(told({"type": "lifespan"}, asgi.scope, asgi.scope))  # type: ignore[arg-type]
    assert passed == [("lifespan", "")]
    assert told.outcomes == {}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/segmented_sum", 200),
        ("POST", "/v1/segmented_dot", 422),
        ("GET", "/v1/segmented_sum", 405),
        ("GET", "/v1/metadata", 200),
        ("GET", "/v1/health/live", 200),
        ("GET", "/v1/metrics", 200),
        ("GET", "/docs", 200),
        ("GET", "/nowhere", 404),
    ],
)
def test_every_answer_of_a_server_has_the_id(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    content = wire.packb(case("segmented_sum").fields) if method == "POST" else None
    headers = {**MSGPACK, "x-request-id": "mine"}
    response = client.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    assert response.headers.get_list("x-request-id") == ["mine"]


def test_refusals_before_the_routes_have_the_id_too() -> None:
    with serving(Settings(tokens="secret", max_body_bytes=10)) as client:
        for headers in ({}, {"authorization": "Bearer secret"}):
            response = client.post("/v1/segmented_sum", content=b"x" * 11, headers=headers)
            assert response.status_code in (401, 413)
            assert response.headers["x-request-id"]


class _Failing(Engine):
    """An engine that fails in ways that nobody foresaw."""

    def snapshot(self) -> EngineSnapshot:
        raise RuntimeError("secret")

    def require_able(self) -> None:
        raise RuntimeError("secret")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/segmented_sum")])
def test_an_unforeseen_error_is_found_in_the_log_by_the_id_of_the_answer(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(), _Failing(Settings()))
    reply = asgi.ask(app, path, method=method)
    ident = reply.header(REQUEST_ID)
    assert (reply.status, reply.header(b"connection")) == (500, "close")
    assert ident
    assert ident in json.loads(reply.body)["detail"]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert ident in record.getMessage()
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


def test_a_client_that_leaves_in_its_upload_is_a_hang_up_of_a_server(client: httpx.Client) -> None:
    def hang_ups() -> float:
        text = client.get("/v1/metrics").text
        return sum(map(float, re.findall(r'requests_total\{.*outcome="hang-up".*\} (.*)', text)))

    before = hang_ups()
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(
            b"POST /v1/segmented_sum HTTP/1.1\r\nHost: here\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        time.sleep(0.1)
    deadline = time.monotonic() + 10
    while hang_ups() == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert hang_ups() == before + 1
