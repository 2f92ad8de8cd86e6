"""The log: a line a request that says what happened, and nothing that a client could forge."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from segops_client import wire
from segops_service import logs
from segops_service.exchange import Exchange
from segops_service.logs import JsonFormatter, TextFormatter
from tests.service import asgi
from tests.service.helpers import MSGPACK, Process, case, process

SUM = "/v1/segmented_sum"
NASTY = '/v1/x\r\n{"level":"error"}\n2026-01-01 ERROR \x1b[2J\u2028'


def record(message: Any, *args: Any, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("some.where", level, __file__, 0, message, args, None)


def line_of(path: str = SUM, **values: Any) -> logging.LogRecord:
    """Record of a request."""
    exchange = Exchange("an-id")
    for name, value in values.items():
        setattr(exchange, name, value)
    return record(logs._request_line(asgi.scope(path, "POST"), exchange, 0.0123456789))


def raised() -> logging.LogRecord:
    try:
        raise ValueError("it broke\nhere")
    except ValueError:
        failed = record("no luck", level=logging.ERROR)
        failed.exc_info = sys.exc_info()
        return failed


def test_a_request_is_told_in_full() -> None:
    told = json.loads(
        JsonFormatter().format(
            line_of(
                status=200,
                op="segmented_sum",
                want=("value", "vjp"),
                rows=1000,
                segments=50,
                bytes_in=16000,
                bytes_out=700,
                batch=3,
                stages={"decode": 0.00012345, "compute": 0.5},
            )
        )
    )
    ts = datetime.fromisoformat(told.pop("ts"))
    assert timedelta(0) <= datetime.now(UTC) - ts < timedelta(minutes=1)
    assert told == {
        "level": "info",
        "logger": "some.where",
        "message": "request",
        "request_id": "an-id",
        "method": "POST",
        "path": SUM,
        "status": 200,
        "op": "segmented_sum",
        "want": ["value", "vjp"],
        "rows": 1000,
        "segments": 50,
        "bytes_in": 16000,
        "bytes_out": 700,
        "seconds": 0.012346,
        "stages": {"decode": 0.123, "compute": 500},
        "batch": 3,
    }


def test_a_request_is_told_to_people() -> None:
    text = TextFormatter().format(
        line_of(status=422, problem="invalid-argument", rows=7, stages={"decode": 0.001})
    )
    assert f"some.where: POST {SUM} 422 12.346 ms problem=invalid-argument rows=7" in text
    assert text.endswith("decode_ms=1.0 request_id=an-id")


def test_no_path_forges_a_line_in_json() -> None:
    text = JsonFormatter().format(line_of(NASTY))
    assert "\n" not in text
    assert "\r" not in text
    assert json.loads(text)["path"] == NASTY
    assert json.loads(text)["level"] == "info"


def test_no_path_forges_a_line_or_a_field_for_people() -> None:
    text = TextFormatter().format(line_of(NASTY))
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    spaced = TextFormatter().format(line_of("/v1/x 200 1.0 ms", status=404))
    assert "'/v1/x 200 1.0 ms' 404" in spaced


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_long_path_is_cut(formatter: logging.Formatter) -> None:
    assert len(formatter.format(line_of("/" + "x" * 60_000))) < 1000


@pytest.mark.parametrize("text", ["\ud800", "\udcff surrogate", "\x00", "é"])
def test_every_string_can_be_written(text: str) -> None:
    assert json.loads(JsonFormatter().format(line_of(f"/{text}")))["path"].startswith("/")
    assert json.loads(JsonFormatter().format(record("%s", text)))["message"]


def test_other_records_have_the_same_form() -> None:
    told = json.loads(JsonFormatter().format(record("%d of\n%s", 3, "four", level=logging.WARNING)))
    assert datetime.fromisoformat(told.pop("ts")).tzinfo == UTC
    assert told == {"level": "warning", "logger": "some.where", "message": "3 of\nfour"}


def test_a_traceback_is_a_field_in_json_and_indented_for_people() -> None:
    told = json.loads(JsonFormatter().format(raised()))
    assert (told["level"], told["message"]) == ("error", "no luck")
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: it broke\nhere")
    first, *others = TextFormatter().format(raised()).split("\n")
    assert first.endswith("ERROR    some.where: no luck")
    assert others
    assert all(line.startswith("    ") for line in others)


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    failed = raised()
    failed.exc_info = (ValueError, ValueError("x" * 100_000 + " the end"), None)
    told = json.loads(JsonFormatter().format(failed))
    assert len(told["exception"]) < 20_000
    assert told["exception"].endswith("the end")


@pytest.mark.parametrize("path", ["/v1/health/live", "/v2/health/ready", "/v1/metrics"])
def test_probes_are_for_debugging(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "segops_service"):
        logs.request_ended(asgi.scope(path), Exchange("id"), 0.1)
        logs.request_ended(asgi.scope(f"{path}/x"), Exchange("id"), 0.1)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.INFO]


@pytest.fixture(scope="module", params=["json", "text"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def logged(form: str) -> Iterator[Process]:
    """A ready server with a token, whose log is looked at."""
    with process(SEGOPS_LOG_FORMAT=form, SEGOPS_TOKENS="the-secret-token") as server:
        server.client.headers["authorization"] = "Bearer the-secret-token"
        server.wait_until_ready()
        yield server


def found(server: Process, words: str) -> str:
    """Wait for the line of a server's log that has some words; there is no other."""
    deadline = time.monotonic() + 10
    while not (lines := [line for line in server.log if words in line]):
        assert time.monotonic() < deadline, server.log
        time.sleep(0.01)
    (line,) = lines
    return line


def check_form(line: str, form: str) -> None:
    if form == "json":
        assert json.loads(line).keys() >= {"ts", "level", "logger", "message"}
    else:
        datetime.fromisoformat(" ".join(line.split()[:2]))


def test_a_server_logs_each_request_once_with_its_id(logged: Process, form: str) -> None:
    body = wire.packb(case("segmented_sum").fields)
    headers = {**MSGPACK, "x-request-id": "my.id-1"}
    response = logged.client.post(SUM, content=body, headers=headers)
    assert response.headers["x-request-id"] == "my.id-1"
    line = found(logged, "my.id-1")
    if form == "json":
        told = json.loads(line)
        assert (told["status"], told["op"], told["bytes_in"]) == (200, "segmented_sum", len(body))
        assert told["stages"].keys() >= {"upload", "decode", "queue", "compute", "encode"}
        assert 0 < sum(told["stages"].values()) <= told["seconds"] * 1e3
    else:
        assert f"POST {SUM} 200" in line


def test_the_log_holds_no_token_no_header_and_no_content(logged: Process) -> None:
    headers = {"x-request-id": "my.id-2", "cookie": "crumbs", "content-type": "application/json"}
    content = b'{"x": "password", "y'
    logged.client.post(f"{SUM}?key=hidden", content=content, headers=headers)
    logged.client.get("/v1/metadata", headers={"authorization": "Bearer wrong-guess"})
    found(logged, "my.id-2")
    whole = "".join(logged.log)
    for secret in ("the-secret-token", "wrong-guess", "crumbs", "password", "hidden"):
        assert secret not in whole


def test_every_line_of_a_server_has_the_form(logged: Process, form: str) -> None:
    logged.client.get("/nowhere", headers={"x-request-id": "my.id-3"})
    found(logged, "my.id-3")
    found(logged, "Uvicorn running on http://127.0.0.1:")
    for line in logged.log:
        check_form(line, form)


def test_a_server_serves_on_while_nobody_reads_its_log() -> None:
    popen = subprocess.Popen(
        [sys.executable, "-m", "segops_service", "serve", "--port", "0"],
        env={**os.environ, "SEGOPS_PLATFORM": "cpu"},
        stderr=subprocess.PIPE,
    )
    assert popen.stderr is not None
    try:
        while (address := re.search(rb"http://127\.0\.0\.1:\d+", popen.stderr.readline())) is None:
            pass
        with httpx.Client(base_url=address[0].decode(), timeout=10) as client:
            for _ in range(1000):  # more than the pipe holds
                assert client.get("/v1/status").is_success
            popen.stderr.close()
            for _ in range(10):
                assert client.get("/v1/status").is_success
    finally:
        popen.terminate()
        assert popen.wait(60) == 0


def test_a_server_starts_without_standard_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"exec {sys.executable} -m segops_service serve --port {port} 2>&-"
    popen = subprocess.Popen(["sh", "-c", command], env={**os.environ, "SEGOPS_PLATFORM": "cpu"})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            deadline = time.monotonic() + 60
            while not _is_ready(client):
                assert popen.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        popen.terminate()
        assert popen.wait(60) == 0


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/health/ready").is_success
    except httpx.ConnectError:
        return False


class _Value:
    """What a head may hold."""


def test_a_line_that_waits_for_the_log_keeps_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []

    class Blocked:
        put = waiting.append

    monkeypatch.setattr(logs, "_lines", Blocked)
    monkeypatch.setattr(logs.logger, "isEnabledFor", lambda _: True)
    about, value = asgi.scope(SUM, "POST"), _Value()
    about["headers"].append((b"x", value))
    kept = weakref.ref(value)
    logs.request_ended(about, Exchange("an-id"), 0.1)
    del about, value
    assert kept() is None
    (make,) = waiting
    assert (make().msg.path, make().msg.method) == (SUM, "POST")
