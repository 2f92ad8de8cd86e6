"""The metrics say what happened, in series that nobody outside can multiply."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from segops_client import wire
from segops_service import Settings
from segops_service.admission import Admission
from segops_service.errors import OverloadedError
from segops_service.exchange import Exchange
from segops_service.metrics import CONTENT_TYPE, Metrics
from tests.service.helpers import JSON, MSGPACK, case, post, refused, serving
from tests.service.snapshots import Still, device

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: bytes) -> Series:
    """Every sample of a scrape by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[f"segops_{name}", frozenset(labels.items())]


@contextmanager
def difference(client: httpx.Client) -> Iterator[Series]:
    """What the scrape after the block has over the one before it."""
    before = read(client.get("/v1/metrics").content)
    series: Series = {}
    yield series
    after = read(client.get("/v1/metrics").content)
    series.update({key: now - before.get(key, 0) for key, now in after.items()})


def metrics(engine: Still | None = None, admission: Admission | None = None) -> Metrics:
    return Metrics(engine or Still(), admission or Admission(10, 1000))


def exchange(**values: object) -> Exchange:
    made = Exchange("id")
    for name, given in values.items():
        setattr(made, name, given)
    return made


def test_requests_are_counted_by_operation_want_and_outcome() -> None:
    counting = metrics()
    about = exchange(op="segmented_sum", want=("vjp", "value"), bytes_in=100, bytes_out=30)
    counting.request(about, "ok", 0.02)
    counting.request(about, "ok", 0.02)
    counting.request(exchange(bytes_in=7), "not-found", 0.001)
    series = read(counting.render())
    labels = {"op": "segmented_sum", "want": "value+vjp"}
    assert value(series, "requests_total", **labels, outcome="ok") == 2
    assert value(series, "requests_total", op="", want="", outcome="not-found") == 1
    assert value(series, "received_bytes_total") == 207
    assert value(series, "sent_bytes_total") == 60


def test_latencies_are_of_those_that_ended_well() -> None:
    counting = metrics()
    about = exchange(op="segmented_sum")
    for outcome in ("ok", "overloaded", "hang-up"):
        counting.request(about, outcome, 0.02)
    series = read(counting.render())
    assert value(series, "request_seconds_count", op="segmented_sum") == 1
    assert value(series, "request_seconds_bucket", op="segmented_sum", le="0.01") == 0
    assert value(series, "request_seconds_bucket", op="segmented_sum", le="0.025") == 1


def test_stages_are_told_apart() -> None:
    counting = metrics()
    counting.request(exchange(stages={"decode": 0.25, "compute": 70.0}), "ok", 70.5)
    series = read(counting.render())
    assert value(series, "stage_seconds_sum", stage="decode") == 0.25
    assert value(series, "stage_seconds_bucket", stage="compute", le="60.0") == 0
    assert value(series, "stage_seconds_bucket", stage="compute", le="+Inf") == 1
    assert value(series, "stage_seconds_count", stage="upload") == 0


def test_launches_and_compilations_are_observed() -> None:
    counting = metrics()
    counting.launched(requests=8, rows=4000, seconds=0.5)
    counting.compiled(2.0)
    series = read(counting.render())
    assert value(series, "batch_requests_sum") == 8
    assert value(series, "batch_rows_sum") == 4000
    assert value(series, "launch_seconds_sum") == 0.5
    assert value(series, "compile_seconds_sum") == 2


def test_a_scrape_asks_for_what_is_true_now() -> None:
    engine, admission = Still(obstacle="not yet"), Admission(10, 1000)
    counting = metrics(engine, admission)
    assert value(read(counting.render()), "ready") == 0
    engine.obstacle, engine.queued = None, 6
    with admission.enter(400):
        with pytest.raises(OverloadedError):
            admission.enter(601)
        series = read(counting.render())
    assert value(series, "ready") == 1
    assert value(series, "queued_requests") == 6
    assert value(series, "admitted_requests") == value(series, "arriving_requests") == 1
    assert value(series, "admitted_bytes") == 400
    assert value(series, "admitted_bytes_limit") == 1000
    assert value(series, "refused_requests_total") == 1
    assert value(series, "cache_entries") == 3
    assert value(series, "cache_hits_total") == 70
    assert value(series, "cache_misses_total") == 5
    assert value(series, "cache_evictions_total") == 2


def test_each_device_has_its_own_series() -> None:
    gpu = device(
        1,
        kind="NVIDIA H100",
        platform="cuda",
        state="dead",
        launches=5,
        restarts=2,
        memory_used_bytes=100,
        memory_limit_bytes=1000,
    )
    series = read(metrics(Still(devices=(device(0), gpu))).render())
    assert value(series, "device_launches_total", device="0") == 0
    assert value(series, "device_launches_total", device="1") == 5
    assert value(series, "device_restarts_total", device="1") == 2
    assert value(series, "device_state", device="0", state="ready") == 1
    assert value(series, "device_state", device="1", state="ready") == 0
    assert value(series, "device_state", device="1", state="dead") == 1
    assert value(series, "device_memory_used_bytes", device="1") == 100
    assert value(series, "device_info", device="1", kind="NVIDIA H100", platform="cuda") == 1
    assert ("segops_device_memory_used_bytes", frozenset({("device", "0")})) not in series


def test_two_applications_count_apart() -> None:
    one, two = metrics(), metrics()
    one.compiled(1.0)
    assert value(read(two.render()), "compile_seconds_count") == 0


def test_memory_and_descriptors_of_the_process_are_there() -> None:
    series = read(metrics().render())
    assert series["process_resident_memory_bytes", frozenset()] > 2**20
    assert series["process_open_fds", frozenset()] > 0


def test_a_server_counts_each_request_once(client: httpx.Client) -> None:
    drawn = case("segmented_dot", rows=12)
    body = wire.packb(drawn.fields)
    with difference(client) as series:
        answer = client.post("/v1/segmented_dot", content=body, headers=MSGPACK)
        refused(client, "segmented_dot", "x", **{**drawn.fields, "x": np.ones(3, "f4")})
        client.post("/v1/segmented_dot", content=b"{", headers=JSON)
        client.get("/v1/nowhere")
    dot = {"op": "segmented_dot"}
    assert value(series, "requests_total", **dot, want="value", outcome="ok") == 1
    assert value(series, "requests_total", **dot, want="", outcome="invalid-argument") == 1
    assert value(series, "requests_total", **dot, want="", outcome="malformed-body") == 1
    assert value(series, "requests_total", op="", want="", outcome="unknown-op") == 1
    assert value(series, "request_seconds_count", **dot) == 1
    assert value(series, "sent_bytes_total") >= len(answer.content)
    assert value(series, "received_bytes_total") > len(body)
    for stage in ("upload", "decode", "queue", "compute", "encode"):
        assert value(series, "stage_seconds_count", stage=stage) >= 1
    rows = [made for (name, _), made in series.items() if name == "segops_device_rows_total"]
    assert value(series, "batch_rows_sum") == sum(rows) == 12


def test_a_scrape_has_its_content_type(client: httpx.Client) -> None:
    response = client.get("/v1/metrics")
    assert (
        response.headers["content-type"]
        == CONTENT_TYPE
        == "text/plain; version=0.0.4; charset=utf-8"
    )


def test_what_a_client_makes_up_makes_no_series(client: httpx.Client) -> None:
    def names() -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return set(read(client.get("/v1/metrics").content))

    client.get("/v1/nowhere")
    client.get("/nowhere")
    post(client, "segmented_sum", **case("segmented_sum").fields)
    client.request("ODD", "/v1/segmented_sum")
    before = names()
    for number in range(20):
        client.get(f"/v1/made-up-{number}", headers={"x-request-id": f"id-{number}"})
        client.get(f"/made-up/{number}")
        client.request(f"ODD{number}", "/v1/segmented_sum")
        post(client, "segmented_sum", **case("segmented_sum").fields)
    assert names() == before


def test_a_refusal_for_want_of_room_has_an_outcome() -> None:
    with serving(Settings(queue_bytes=10)) as client:
        response = client.post("/v1/segmented_sum", content=b"x" * 11, headers=MSGPACK)
        assert response.status_code == 429
        series = read(client.get("/v1/metrics").content)
    labels = {"op": "segmented_sum", "want": ""}
    assert value(series, "requests_total", **labels, outcome="overloaded") == 1
    assert value(series, "refused_requests_total") == 1


def test_what_a_connection_refuses_by_itself_is_counted() -> None:
    with serving(Settings(max_header_bytes=1024)) as client:
        url = client.base_url
        with socket.create_connection((url.host, url.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 5000)
            assert b" 431 " in connection.recv(4096)
        series = read(client.get("/v1/metrics").content)
        assert value(series, "refusals_total", problem="head-too-large") == 1
