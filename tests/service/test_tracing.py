"""Traces: one span a request, below the caller's own, with its stages below it."""

import http.server
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from segops_client import wire
from segops_service import Settings
from segops_service.admission import Admission
from segops_service.exchange import exchange_of
from segops_service.metrics import Metrics
from segops_service.problems import NOT_READY, problem_response
from segops_service.telemetry import Telemetry
from segops_service.tracing import Tracing, instrument
from tests.service import asgi
from tests.service.helpers import MSGPACK, case, process
from tests.service.snapshots import Still

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def spans(
    app: ASGIApp,
    path: str = "/v1/segmented_sum",
    headers: Any = (),
    sampler: Sampler | None = None,
) -> list[ReadableSpan]:
    """Spans of one request, the request's own last."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    told = Telemetry(app, Metrics(Still(), Admission(1, 1)))
    asgi.ask(Tracing(told, provider.get_tracer("here")), path, method="POST", headers=headers)
    return list(exporter.get_finished_spans())


async def operation(scope: Scope, receive: Receive, send: Send) -> None:
    exchange = exchange_of(scope)
    exchange.op, exchange.want = "segmented_sum", ("value", "vjp")
    exchange.rows, exchange.segments, exchange.batch = 1000, 50, 3
    exchange.stages.update(decode=0.5, compute=0.25)
    await PlainTextResponse("")(scope, receive, send)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


def test_a_request_has_a_span_that_says_what_it_was() -> None:
    span = spans(operation, headers=[(b"x-request-id", b"mine")])[-1]
    assert (span.name, span.kind) == ("POST /v1/segmented_sum", SpanKind.SERVER)
    assert (span.parent, span.status.status_code) == (None, StatusCode.UNSET)
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/v1/segmented_sum",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "url.path": "/v1/segmented_sum",
        "segops.request_id": "mine",
        "segops.op": "segmented_sum",
        "segops.want": ("value", "vjp"),
        "segops.rows": 1000,
        "segops.segments": 50,
        "segops.batch": 3,
    }


def test_stages_are_spans_below_it_one_after_the_other() -> None:
    decode, compute, span = spans(operation)
    assert [decode.name, compute.name] == ["decode", "compute"]
    assert decode.parent == compute.parent == span.context
    assert None not in (decode.start_time, decode.end_time, compute.end_time)
    assert decode.end_time - decode.start_time == 500_000_000  # type: ignore[operator]
    assert compute.start_time == decode.end_time
    assert compute.end_time - compute.start_time == 250_000_000  # type: ignore[operator]


def test_the_caller_s_trace_goes_on() -> None:
    span = spans(operation, headers=[(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())])[-1]
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("given", [b"", b"nonsense", b"00-0-0-01", b"\xff" * 55])
def test_a_caller_s_nonsense_begins_a_trace_of_its_own(given: bytes) -> None:
    assert spans(operation, headers=[(b"traceparent", given)])[-1].parent is None


def test_a_failure_of_the_server_is_an_error_and_a_refusal_is_not() -> None:
    span = spans(problem_response(NOT_READY, "no device"))[-1]
    assert span.status.status_code == StatusCode.ERROR
    assert attributes(span)["error.type"] == "not-ready"
    assert spans(PlainTextResponse("", 422))[-1].status.status_code == StatusCode.UNSET


def test_an_unknown_path_makes_no_name() -> None:
    assert spans(PlainTextResponse("", 404), "/made/up")[-1].name == "POST"


@pytest.mark.parametrize("path", ["/v1/health/live", "/v1/metrics"])
def test_probes_are_not_traced(path: str) -> None:
    assert spans(PlainTextResponse(""), path) == []


def test_what_is_not_sampled_is_served_all_the_same() -> None:
    assert spans(operation, sampler=ALWAYS_OFF) == []


def test_without_the_setting_nothing_is_put_in_between() -> None:
    app = PlainTextResponse("")
    assert instrument(app, Settings()) is app


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RuntimeError, match=r"segops-service\[otel\]"):
        instrument(PlainTextResponse(""), Settings(tracing=True))


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Something that takes what is exported: its address, and the bodies that it got."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_a_server_sends_its_spans_before_it_ends() -> None:
    content = wire.packb(case("segmented_sum").fields)
    with collector() as (address, bodies):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_SERVICE_NAME": "the-name"}
        with process(SEGOPS_TRACING="true", **variables) as server:
            server.wait_until_ready()
            headers = {**MSGPACK, "x-request-id": "traced-one"}
            server.client.post("/v1/segmented_sum", content=content, headers=headers)
        sent = b"".join(bodies)
    for words in (b"the-name", b"traced-one", b"POST /v1/segmented_sum", b"compute"):
        assert words in sent


def test_a_collector_that_is_not_there_holds_nobody_up() -> None:
    content = wire.packb(case("segmented_sum").fields)
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    with process(SEGOPS_TRACING="true", **variables) as server:
        server.wait_until_ready()
        response = server.client.post("/v1/segmented_sum", content=content, headers=MSGPACK)
        assert response.is_success
        began = time.monotonic()
        server.popen.terminate()
        assert server.popen.wait(60) == 0
        assert time.monotonic() - began < 15
