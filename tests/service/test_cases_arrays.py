"""Array encodings that broke other servers, sent to this one."""

import pickle
from pathlib import Path
from typing import Any

import httpx
import msgpack
import msgpack_numpy
import numpy as np
import pytest

from segops_client import wire
from tests.service.helpers import (
    JSON,
    MSGPACK,
    Process,
    assert_bits_equal,
    case,
    post,
    problem,
    refused,
)

SUM = "/v1/segmented_sum"


@pytest.mark.parametrize(
    "x",
    [
        np.arange(128 * 128, dtype="f4").reshape(128, 128)[10:100, 10:13],
        np.arange(12, dtype="f4").reshape(4, 3)[::-1],
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        np.broadcast_to(np.float32(2), (4, 3)),
    ],
    ids=["sliced", "reversed", "fortran", "broadcast"],
)
def test_memory_order_of_the_sender_does_not_matter(client: httpx.Client, x: np.ndarray) -> None:
    idx = np.arange(2 * len(x), dtype="i8")[::2] // 4
    fields = {"x": np.ascontiguousarray(x), "idx": np.ascontiguousarray(idx), "num_segments": 100}
    expected = post(client, "segmented_sum", **fields)
    assert_bits_equal(post(client, "segmented_sum", **{**fields, "x": x, "idx": idx}), expected)


def test_a_plain_msgpack_numpy_peer_interoperates(client: httpx.Client) -> None:
    drawn = case("segmented_dot")
    packed = msgpack.packb(drawn.fields, default=msgpack_numpy.encode)
    response = client.post("/v1/segmented_dot", content=packed, headers=MSGPACK)
    answer = msgpack.unpackb(response.content, object_hook=msgpack_numpy.decode)
    assert_bits_equal(answer, post(client, "segmented_dot", **drawn.fields))


@pytest.mark.parametrize("media_type", wire.MEDIA_TYPES)
def test_every_name_of_msgpack_is_read(client: httpx.Client, media_type: str) -> None:
    body = wire.packb(case("segmented_sum").fields)
    assert client.post(SUM, content=body, headers={"content-type": media_type}).is_success


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", [b"O", b""])
def test_a_pickle_is_refused_and_never_run(
    client: httpx.Client, tmp_path: Path, kind: bytes
) -> None:
    trap = tmp_path / "ran"
    array = {
        b"nd": True,
        b"kind": kind,
        b"type": "|O",
        b"shape": [1],
        b"data": pickle.dumps(_Trap(trap)),
    }
    response = client.post(
        SUM, content=msgpack.packb({"x": array, "idx": [0], "num_segments": 1}), headers=MSGPACK
    )
    assert response.status_code in (400, 422)
    assert response.json()["field"].startswith("x")
    assert not trap.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x9f\xfdt\xf7\xddt\xff\xfd\xbd",
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20,
        b"\x91" * 100_000,
        b"\xc1",
        b"\x90",
    ],
    ids=["empty", "mixed", "array32", "maps", "nested", "unused", "list"],
)
def test_hostile_msgpack_is_malformed_and_the_next_request_works(
    client: httpx.Client, body: bytes
) -> None:
    response = client.post(SUM, content=body, headers=MSGPACK)
    problem(response, 400, "malformed-body")
    assert post(client, "segmented_sum", **case("segmented_sum").fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"\xff", b"[1]", b'{"x": NaN}'])
def test_hostile_json_is_malformed(client: httpx.Client, body: bytes) -> None:
    problem(client.post(SUM, content=body, headers=JSON), 400, "malformed-body")


@pytest.mark.parametrize("shape", [[2**40], [-1], [True], [1.0], ["1"], [2]])
def test_a_shape_that_lies_about_its_data_is_malformed(client: httpx.Client, shape: Any) -> None:
    x = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": shape, b"data": b""}
    body = msgpack.packb({"x": x, "idx": [0], "num_segments": 1})
    document = problem(client.post(SUM, content=body, headers=MSGPACK), 400, "malformed-body")
    assert document["field"].startswith("x")


@pytest.mark.parametrize("dtype", ["f2", "c8", "S4"])
def test_a_dtype_outside_the_wire_format_names_its_field(client: httpx.Client, dtype: str) -> None:
    x = np.zeros(1, dtype)
    body = msgpack.packb(
        {"x": x, "idx": np.zeros(1, "i4"), "num_segments": 1}, default=msgpack_numpy.encode
    )
    document = problem(client.post(SUM, content=body, headers=MSGPACK), 422, "invalid-argument")
    assert document["field"] == "x"


@pytest.mark.parametrize("dtype", ["?", "i4", "u8"])
def test_a_dtype_that_no_operation_takes_names_its_field(client: httpx.Client, dtype: str) -> None:
    refused(
        client, "segmented_sum", "x", x=np.zeros(1, dtype), idx=np.zeros(1, "i4"), num_segments=1
    )


@pytest.mark.parametrize("megabytes", [1.4, 101])
def test_arrays_beyond_the_buffers_of_streaming_unpackers(
    server: Process, megabytes: float
) -> None:
    rows = int(megabytes * 2**20 / 4)
    x, idx = np.ones(rows, "f4"), np.zeros(rows, "u1")
    answer = post(server.client, "segmented_sum", x=x, idx=idx, num_segments=1)
    assert answer["value"] == [rows]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_big_endian_arrays_mean_the_same(client: httpx.Client, dtype: str) -> None:
    drawn = case("segmented_mul", np.dtype(dtype).name)
    swapped = {
        **{name: array.astype(f">{dtype}") for name, array in drawn.operands.items()},
        "idx": drawn.idx.astype(">i4"),
        "num_segments": drawn.num_segments,
    }
    body = msgpack.packb(swapped, default=msgpack_numpy.encode)
    for _ in range(2):  # the first compiles, the second is the warm call
        response = client.post("/v1/segmented_mul", content=body, headers=MSGPACK)
        answer = wire.unpackb(response.content)
        assert_bits_equal(answer, post(client, "segmented_mul", **drawn.fields))


def test_special_numbers_keep_their_bits_in_msgpack(client: httpx.Client) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0], "f4")
    fields = {"x": np.ones(4, "f4"), "idx": np.arange(4), "num_segments": 4}
    answer = post(client, "segmented_sum", **fields, cotangent=special, want=["vjp"])
    assert_bits_equal(answer, {"vjp": {"x": special}})


def test_special_numbers_stay_in_their_segment(client: httpx.Client) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0, -0.0], "f4")
    fields = {"x": x, "idx": np.arange(5), "num_segments": 5}
    value = post(client, "segmented_sum", **fields)["value"]
    np.testing.assert_array_equal(value, x)


@pytest.mark.parametrize("want", ["value", "vjp"])
def test_json_never_carries_nan_or_inf(client: httpx.Client, want: str) -> None:
    special = np.array([np.nan, np.inf], "f4")
    fields = {"x": special, "cotangent": special, "idx": np.arange(2), "num_segments": 2}
    response = client.post(
        SUM,
        content=wire.packb({**fields, "want": [want]}),
        headers={**MSGPACK, "accept": "application/json"},
    )
    document = problem(response, 422, "not-json-representable")
    assert document["field"] == {"value": "value", "vjp": "vjp.x"}[want]


def test_a_problem_about_nan_is_valid_json(client: httpx.Client) -> None:
    x = np.ones(2, "f4")
    body = wire.packb({"x": x, "idx": np.arange(2), "num_segments": float("nan")})
    document = problem(client.post(SUM, content=body, headers=MSGPACK), 422, "invalid-argument")
    assert document["field"] == "num_segments"


@pytest.mark.parametrize(
    "x", [[1.0, None], [1.0, "2"], [1.0, True], [1.0, [2.0]], [[1.0, 2.0], [3.0]], 1.0, "1", {}]
)
def test_json_that_is_no_array_of_numbers_names_its_field(client: httpx.Client, x: Any) -> None:
    response = client.post(SUM, json={"x": x, "idx": [0, 0], "num_segments": 1})
    assert problem(response, 422, "invalid-argument")["field"] == "x"


@pytest.mark.parametrize("idx", [[0, None], [0, "0"], [0, True], [0, 0.0], [[0, 0]], 0, None])
def test_json_that_is_no_list_of_integers_names_idx(client: httpx.Client, idx: Any) -> None:
    response = client.post(SUM, json={"x": [1.0, 2.0], "idx": idx, "num_segments": 1})
    assert problem(response, 422, "invalid-argument")["field"] == "idx"


def test_a_json_number_too_large_for_its_dtype_is_refused(client: httpx.Client) -> None:
    body = {"x": [1e300], "idx": [0], "num_segments": 1}
    assert problem(client.post(SUM, json=body), 422, "invalid-argument")["field"] == "x"
    assert client.post(SUM, json={**body, "dtype": "float64"}).json() == {"value": [1e300]}
