"""Every operation and every want over HTTP, against formulas and against the library."""

from typing import Any

import httpx
import jax
import numpy as np
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import segops
from segops_client import wire
from segops_service import Engine, Settings, create_app
from segops_service.operations import OPERATIONS
from segops_service.server import Server
from tests.service.helpers import (
    JSON,
    MSGPACK,
    WANTS,
    Process,
    assert_bits_equal,
    assert_close,
    case,
    oracle,
    post,
    problem,
)
from tests.service.raw import listening

FORMS = [(op, form) for op, operation in OPERATIONS.items() for form in range(len(operation.forms))]


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_each_want_is_what_the_formula_says(
    client: httpx.Client, op: str, form: int, dtype: str, want: str
) -> None:
    drawn = case(op, dtype, form=form)
    answer = post(client, op, **drawn.all_fields, want=[want])
    assert_close(answer, {want: oracle(drawn)[want]}, dtype)


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_the_cotangent_defaults_to_ones(client: httpx.Client, op: str, form: int) -> None:
    drawn = case(op, form=form)
    fields = {**drawn.fields, "tangents": drawn.tangents, "want": ["vjp", "hvp"]}
    ones = np.ones_like(drawn.cotangent)
    assert_bits_equal(post(client, op, **fields), post(client, op, **fields, cotangent=ones))


@pytest.mark.parametrize("op", ["segmented_dot", "segmented_mul", "segmented_matvec"])
def test_a_tangent_left_out_is_zero(client: httpx.Client, op: str) -> None:
    drawn = case(op)
    first, second = drawn.tangents
    drawn.tangents[second] = np.zeros_like(drawn.tangents[second])
    fields = {**drawn.fields, "want": ["jvp", "hvp"]}
    answer = post(client, op, **fields, tangents={first: drawn.tangents[first]})
    assert_bits_equal(answer, post(client, op, **fields, tangents=drawn.tangents))


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_the_answer_has_the_bits_of_the_library(
    client: httpx.Client, op: str, form: int, dtype: str, is_sorted: bool
) -> None:
    drawn = case(op, dtype, rows=300, form=form)
    drawn.idx = np.sort(drawn.idx) if is_sorted else drawn.idx
    answer = post(client, op, **drawn.all_fields, indices_are_sorted=is_sorted, want=list(WANTS))
    assert_bits_equal(answer, _in_process(drawn, is_sorted))


def _in_process(drawn: Any, is_sorted: bool) -> dict[str, Any]:
    def everything(operands: Any, idx: Any, cotangent: Any, tangents: Any) -> dict[str, Any]:
        ordered = (operands[name] for name in OPERATIONS[drawn.op].operands)
        args = (drawn.op, *ordered, idx, drawn.num_segments)
        options = {"indices_are_sorted": is_sorted}
        value, vjp = segops.value_and_vjp(*args, cotangent=cotangent, **options)
        jvp = segops.jvp(*args, tangents=tangents, **options)
        hvp = segops.hvp(*args, tangents=tangents, cotangent=cotangent, **options)
        return {"value": value, "vjp": vjp, "jvp": jvp, "hvp": hvp}

    return jax.jit(everything)(drawn.operands, drawn.idx, drawn.cotangent, drawn.tangents)


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_the_value_has_the_bits_of_the_library_called_without_jit(
    client: httpx.Client, op: str, form: int
) -> None:
    drawn = case(op, rows=300, form=form)
    value = getattr(segops, op)(*drawn.operands.values(), drawn.idx, drawn.num_segments)
    assert_bits_equal(post(client, op, **drawn.fields), {"value": value})


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_what_else_is_wanted_changes_no_bit(client: httpx.Client, op: str, form: int) -> None:
    fields = case(op, form=form).all_fields
    together = post(client, op, **fields, want=list(WANTS))
    assert list(together) == list(WANTS)
    for want in WANTS:
        assert_bits_equal(post(client, op, **fields, want=[want]), {want: together[want]})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_json_gives_the_numbers_of_msgpack(
    client: httpx.Client, op: str, form: int, dtype: str
) -> None:
    drawn = case(op, dtype, form=form)
    fields = {**drawn.all_fields, "want": list(WANTS)}
    response = client.post(f"/v1/{op}", json=_lists({**fields, "dtype": dtype}))
    assert response.headers["content-type"] == "application/json"
    assert response.json() == _lists(post(client, op, **fields))


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_accept_chooses_the_encoding_of_the_answer(client: httpx.Client) -> None:
    drawn = case("segmented_sum")
    as_json = client.post(
        "/v1/segmented_sum",
        content=wire.packb(drawn.fields),
        headers={**MSGPACK, "accept": "application/json"},
    )
    as_msgpack = client.post(
        "/v1/segmented_sum",
        json=_lists(drawn.fields),
        headers={"accept": wire.MEDIA_TYPE},
    )
    assert as_json.json() == _lists(wire.unpackb(as_msgpack.content))


def test_a_real_process_answers_like_the_server_in_this_one(
    client: httpx.Client, server: Process
) -> None:
    for op, form in FORMS:
        fields = {**case(op, form=form).all_fields, "want": list(WANTS)}
        assert_bits_equal(post(server.client, op, **fields), post(client, op, **fields))


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_health_of_a_ready_server(client: httpx.Client, version: str) -> None:
    assert client.get(f"/{version}/health/live").json() == {"status": "live"}
    assert client.get(f"/{version}/health/ready").json() == {"status": "ready"}


def test_a_server_that_is_not_ready_is_live_and_refuses_to_compute() -> None:
    app = _without_lifespan(create_app(Settings(), Engine(Settings())))
    with listening(app) as server, httpx.Client(base_url=_address(server)) as client:
        assert client.get("/v1/health/live").status_code == 200
        problem(client.get("/v1/health/ready"), 503, "not-ready")
        problem(client.get("/v2/health/ready"), 503, "not-ready")
        response = client.post("/v1/segmented_sum", content=b"{}", headers=JSON)
        problem(response, 503, "not-ready")


def _address(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def _without_lifespan(app: ASGIApp) -> ASGIApp:
    """Application whose engine nobody starts."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for moment in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{moment}.complete"})

    return serve


@pytest.mark.parametrize("path", ["/v1/segmented_sum", "/v1/segmented_sum/"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_operations_take_post_alone(client: httpx.Client, method: str, path: str) -> None:
    assert client.request(method, path).status_code == (404 if path.endswith("/") else 405)
