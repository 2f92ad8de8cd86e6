"""Problem documents: each kind, from where it really comes."""

import asyncio
import re
import socket
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from segops_client import wire
from segops_service import Engine, Settings, create_app, problems
from segops_service.calls import Call
from segops_service.exchange import Exchange
from segops_service.problems import add_problem_handlers
from tests.service.asgi import Reply, scope, serve
from tests.service.helpers import JSON, MSGPACK, case, post, problem, process, refused

SUM = "/v1/segmented_sum"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/a/b", "/v2/metadata", "/v1/segmented_sum/"])
def test_an_unknown_address_is_not_found(client: httpx.Client, path: str) -> None:
    problem(client.post(path, json={}), 404, "not-found")
    problem(client.get(path), 404, "not-found")


def test_an_unknown_operation_lists_the_known_ones(client: httpx.Client) -> None:
    document = problem(client.post("/v1/segmented_max", json={}), 404, "unknown-op")
    assert "segmented_sum" in document["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", SUM, "POST"), ("PUT", SUM, "POST"), ("POST", "/v1/metadata", "GET")],
)
def test_a_wrong_method_says_which_are_allowed(
    client: httpx.Client, method: str, path: str, allowed: str
) -> None:
    response = client.request(method, path)
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_an_unknown_media_type_is_unsupported(client: httpx.Client, media_type: str) -> None:
    response = client.post(SUM, content=b"{}", headers={"content-type": media_type})
    assert "application/json" in problem(response, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("coding", ["gzip", "zstd", "gzip, gzip", "br", "nonsense"])
def test_a_compressed_body_is_unsupported(client: httpx.Client, coding: str) -> None:
    response = client.post(SUM, content=b"", headers={**MSGPACK, "content-encoding": coding})
    problem(response, 415, "unsupported-media-type")


def test_the_identity_coding_is_no_coding(client: httpx.Client) -> None:
    body = wire.packb(case("segmented_sum").fields)
    headers = {**MSGPACK, "content-encoding": "identity"}
    assert client.post(SUM, content=body, headers=headers).is_success


def test_an_answer_nobody_accepts_is_not_acceptable(client: httpx.Client) -> None:
    response = client.post(SUM, content=b"{}", headers={**JSON, "accept": "text/html"})
    problem(response, 406, "not-acceptable")


def test_a_field_path_reaches_into_maps(client: httpx.Client) -> None:
    fields = {**case("segmented_dot").fields, "want": ["jvp"]}
    wrong = {"tangents": {"y": np.ones((2, 3), "f4")}}
    refused(client, "segmented_dot", "tangents.y", **fields, **wrong)


def test_a_problem_does_not_send_a_long_name_back(client: httpx.Client) -> None:
    name = "y" * 100_000
    response = client.post(SUM, json={name: 1})
    document = problem(response, 422, "invalid-argument")
    assert name.startswith(document["field"])
    assert len(response.content) < 5000


def test_a_fault_of_the_wire_names_its_field(client: httpx.Client) -> None:
    body = wire.packb(case("segmented_sum").fields)[:-1]
    problem(client.post(SUM, content=body, headers=MSGPACK), 400, "malformed-body")


class _Failing(Engine):
    """An engine that fails in a way that nobody foresaw."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Settings(platform="cpu"))
        self.error = error

    def require_able(self) -> None:
        pass

    def submit(self, call: Call, exchange: Exchange) -> Any:  # noqa: ARG002
        raise self.error


def _failing_with(error: Exception) -> httpx.Response:
    app, reply = create_app(Settings(), _Failing(error)), Reply()
    about = scope(SUM, "POST", [(b"content-type", wire.MEDIA_TYPE.encode())])
    asyncio.run(serve(app, about, reply, [wire.packb(case("segmented_sum").fields)]))
    headers = reply.messages[0]["headers"]
    return httpx.Response(reply.status, headers=headers, content=reply.body)


def test_an_unforeseen_failure_is_internal_and_tells_nothing_of_the_inside() -> None:
    response = _failing_with(RuntimeError("secret"))
    document = problem(response, 500, "internal")
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in document["detail"]
    assert response.headers["connection"] == "close"


def test_host_memory_that_runs_out_is_out_of_memory() -> None:
    problem(_failing_with(MemoryError("no room")), 507, "out-of-memory")


def test_device_memory_that_runs_out_fails_one_request_and_not_the_next() -> None:
    limits = {"SEGOPS_MAX_SEGMENTS": str(2**31 - 1), "SEGOPS_MAX_OUTPUT_BYTES": str(2**32 - 1)}
    limits["SEGOPS_QUEUE_BYTES"] = str(2**40)
    with process(**limits) as server:
        server.wait_until_ready()
        server.limit_memory(2**30)
        fields = {"x": np.ones((4, 3)), "idx": np.zeros(4, "i4"), "num_segments": 2**27}
        response = server.client.post(SUM, content=wire.packb(fields), headers=MSGPACK)
        problem(response, 507, "out-of-memory")
        answer = post(server.client, "segmented_sum", **{**fields, "num_segments": 1})
        np.testing.assert_array_equal(answer["value"], [[4, 4, 4]])


def test_a_parameter_that_the_framework_refuses_is_a_problem_too() -> None:
    app = FastAPI()
    add_problem_handlers(app)

    @app.get("/rows/{count}")
    async def rows(count: int) -> int:
        return count

    transport = httpx.ASGITransport(app)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/rows/many")

    assert problem(asyncio.run(ask()), 422, "invalid-argument")["field"] == "count"


def test_a_client_that_hangs_up_in_its_upload_is_no_failure_of_the_server(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(
            b"POST /v1/segmented_sum HTTP/1.1\r\nHost: here\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
    assert client.get("/v1/health/live").is_success
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_types_are_unique_and_never_change() -> None:
    kinds = [kind for kind in vars(problems).values() if isinstance(kind, problems.Problem)]
    assert {(kind.type, kind.status) for kind in kinds} == {
        ("urn:segops:problem:malformed-body", 400),
        ("urn:segops:problem:malformed-request", 400),
        ("urn:segops:problem:unauthorized", 401),
        ("urn:segops:problem:not-found", 404),
        ("urn:segops:problem:unknown-op", 404),
        ("urn:segops:problem:method-not-allowed", 405),
        ("urn:segops:problem:not-acceptable", 406),
        ("urn:segops:problem:request-timeout", 408),
        ("urn:segops:problem:body-too-large", 413),
        ("urn:segops:problem:unsupported-media-type", 415),
        ("urn:segops:problem:invalid-argument", 422),
        ("urn:segops:problem:array-too-large", 422),
        ("urn:segops:problem:not-json-representable", 422),
        ("urn:segops:problem:overloaded", 429),
        ("urn:segops:problem:head-too-large", 431),
        ("urn:segops:problem:internal", 500),
        ("urn:segops:problem:not-ready", 503),
        ("urn:segops:problem:deadline-exceeded", 503),
        ("urn:segops:problem:out-of-memory", 507),
    }
    assert all(re.fullmatch(r"[a-z-]+", kind.slug) for kind in kinds)
