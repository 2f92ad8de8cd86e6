"""Limits on bodies, arrays and answers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from segops_client import wire
from segops_service import Settings
from segops_service.errors import BodyTooLargeError
from segops_service.limits import BodyLimit
from tests.service.helpers import JSON, MSGPACK, case, post, problem, serving
from tests.service.raw import Client, head, resident

SUM = "/v1/segmented_sum"
LIMIT = 4096


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    """Client of a server with small limits."""
    settings = Settings(
        max_body_bytes=LIMIT,
        max_json_bytes=512,
        max_rows=100,
        max_segments=1000,
        max_output_bytes=2048,
    )
    with serving(settings) as client:
        yield client


def test_a_declared_length_over_the_limit_is_refused_before_the_body(small: httpx.Client) -> None:
    with Client(small.base_url.port) as client:
        client.send(head(SUM, 10 * 2**30, "Content-Type: application/json"))
        assert client.response().status == 413


def test_an_undeclared_length_is_refused_once_its_total_is_over_the_limit(
    small: httpx.Client,
) -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b"x" * 256] * (LIMIT // 256 + 1)

    problem(small.post(SUM, content=chunks(), headers=JSON), 413, "body-too-large")


@pytest.mark.parametrize("length", ["Content-Length: 10737418240", "Transfer-Encoding: chunked"])
def test_a_body_without_end_takes_no_memory(small: httpx.Client, length: str) -> None:
    content = bytes(2**20)
    piece = b"100000\r\n" + content + b"\r\n" if "chunked" in length else content
    fields = f"POST {SUM} HTTP/1.1\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    with Client(small.base_url.port) as client:
        client.send(fields.encode(), piece)
        assert client.response().status == 413
        before = resident()
        for _ in range(128):
            client.send(piece)
        assert resident() - before < 32 * 2**20


def test_a_body_at_the_limit_passes() -> None:
    body = wire.packb(case("segmented_sum").fields)
    for limit, expected in ((len(body), 200), (len(body) - 1, 413)):
        with serving(Settings(max_body_bytes=limit)) as client:
            assert client.post(SUM, content=body, headers=MSGPACK).status_code == expected
            chunked = client.post(SUM, content=iter([body]), headers=MSGPACK)
            assert chunked.status_code == expected


def test_the_running_total_stops_reading() -> None:
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def app(_: Any, receive: Any, __: Any) -> None:
        while True:
            await receive()

    with pytest.raises(BodyTooLargeError):
        asyncio.run(BodyLimit(app, 25)({"type": "http", "headers": []}, receive, send))
    assert asked == 3


def test_json_has_its_own_limit(small: httpx.Client) -> None:
    body = b'{"x": [' + b"1.0," * 200 + b'1.0], "idx": [0], "num_segments": 1}'
    document = problem(small.post(SUM, content=body, headers=JSON), 413, "body-too-large")
    assert "msgpack" in document["detail"]


def test_too_many_rows_name_idx(small: httpx.Client) -> None:
    fields = {"x": np.ones(101, "f4"), "idx": np.zeros(101, "u1"), "num_segments": 1}
    response = small.post(SUM, content=wire.packb(fields), headers=MSGPACK)
    assert problem(response, 422, "array-too-large")["field"] == "idx"
    fields = {"x": np.ones(100, "f4"), "idx": np.zeros(100, "u1"), "num_segments": 1}
    assert post(small, "segmented_sum", **fields)["value"] == [100]


def test_too_many_segments_name_num_segments(small: httpx.Client) -> None:
    body = {"x": [1.0], "idx": [0], "num_segments": 1001}
    document = problem(small.post(SUM, json=body), 422, "array-too-large")
    assert document["field"] == "num_segments"


def test_the_answer_is_bounded_over_everything_wanted(small: httpx.Client) -> None:
    body = {"x": np.ones(1, "f4"), "idx": np.zeros(1, "i4"), "num_segments": 500}
    assert len(post(small, "segmented_sum", **body)["value"]) == 500
    for fields in (
        {**body, "num_segments": 513},
        {**body, "want": ["value", "jvp"], "tangents": {}},
        {**body, "x": np.ones((1, 3), "f4")},
    ):
        response = small.post(SUM, content=wire.packb(fields), headers=MSGPACK)
        assert problem(response, 422, "array-too-large")["field"] == "num_segments"


def test_a_large_answer_of_a_broadcast_names_the_rows(small: httpx.Client) -> None:
    fields = {
        **case("segmented_mul", rows=100, segments=2).fields,
        "want": ["value", "vjp"],
    }
    response = small.post("/v1/segmented_mul", content=wire.packb(fields), headers=MSGPACK)
    assert problem(response, 422, "array-too-large")["field"] == "x"


def test_a_large_answer_is_not_written_as_json(small: httpx.Client) -> None:
    body = {"x": [1.0], "idx": [0], "num_segments": 200}
    document = problem(small.post(SUM, json=body), 422, "not-json-representable")
    assert "msgpack" in document["detail"]
    answer = small.post(SUM, json=body, headers={"accept": wire.MEDIA_TYPE})
    assert len(wire.unpackb(answer.content)["value"]) == 200


def test_health_and_metadata_have_no_body_to_limit(small: httpx.Client) -> None:
    assert small.get("/v1/health/live").is_success
    assert small.get("/v1/metadata").json()["limits"]["max_body_bytes"] == LIMIT
