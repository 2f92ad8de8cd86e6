"""Sizes and ids that broke other servers, sent to this one."""

from typing import Any

import httpx
import numpy as np
import pytest

from segops_service.operations import OPERATIONS
from tests.service.helpers import (
    WANTS,
    assert_bits_equal,
    case,
    leaves,
    oracle,
    post,
    problem,
    refused,
)

FORMS = [(op, form) for op, operation in OPERATIONS.items() for form in range(len(operation.forms))]
SUM = "/v1/segmented_sum"


@pytest.mark.parametrize("segments", [5, 0])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_no_rows_give_zeros_of_the_right_shape(
    client: httpx.Client, op: str, form: int, segments: int
) -> None:
    drawn = case(op, rows=0, segments=segments, form=form)
    answer = post(client, op, **drawn.all_fields, want=list(WANTS))
    expected = oracle(drawn)
    for (_, a), (_, b) in zip(leaves(answer), leaves(expected), strict=True):
        assert a.shape == b.shape
        assert not a.any()


@pytest.mark.parametrize("segments", [5, 0])
@pytest.mark.parametrize("op", OPERATIONS)
def test_no_rows_in_json_are_an_empty_list(client: httpx.Client, op: str, segments: int) -> None:
    drawn = case(op, rows=0, segments=segments, form=0)
    body: dict[str, Any] = {name: array.tolist() for name, array in drawn.operands.items()}
    body |= {"idx": [], "num_segments": segments, "want": ["value", "vjp"]}
    answer = client.post(f"/v1/{op}", json=body).json()
    assert answer["value"] == np.zeros_like(oracle(drawn)["value"]).tolist()
    assert answer["vjp"].keys() == drawn.operands.keys()


@pytest.mark.parametrize(
    ("idx", "position"),
    [
        (np.array([0, 1, 2**32]), 2),
        (np.array([0, -(2**32), 1]), 1),
        (np.array([-(2**63), 0, 1]), 0),
        (np.array([0, 1, 2**64 - 1], "u8"), 2),
        (np.array([0, 1, 2**63], "u8"), 2),
        (np.array([0, 1, -1], "i1"), 2),
        (np.array([0, 1, 2], "i4"), 2),
        (np.array([0, 2**31, 2**31], "u4"), 1),
        (np.array([0, 1, 255], "u1"), 2),
    ],
)
def test_a_bad_id_is_refused_at_its_first_position_or_dropped(
    client: httpx.Client, idx: np.ndarray, position: int
) -> None:
    x = np.array([1, 2, 4], "f4")
    fields = {"x": x, "idx": idx, "num_segments": 2}
    assert refused(client, "segmented_sum", "idx", **fields)["position"] == position

    answer = post(client, "segmented_sum", **fields, out_of_range="drop", want=["value", "vjp"])
    ids = [int(i) for i in idx]
    np.testing.assert_array_equal(
        answer["value"], [sum(x[row] for row in range(3) if ids[row] == s) for s in range(2)]
    )
    np.testing.assert_array_equal(answer["vjp"]["x"], [0 <= i < 2 for i in ids])


@pytest.mark.parametrize("id_in_json", [2**31, 2**32, 2**63, 2**64, 10**30, -1, -(2**63) - 1])
def test_an_id_of_any_size_in_json_is_refused_or_dropped(
    client: httpx.Client, id_in_json: int
) -> None:
    body = {"x": [1.0, 2.0, 4.0], "idx": [0, 1, id_in_json], "num_segments": 2}
    document = problem(client.post(SUM, json=body), 422, "invalid-argument")
    assert (document["field"], document["position"]) == ("idx", 2)
    dropped = client.post(SUM, json={**body, "out_of_range": "drop"})
    assert dropped.json() == {"value": [1.0, 2.0]}


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_dropped_rows_add_nothing_and_receive_exactly_zero(
    client: httpx.Client, op: str, form: int, is_sorted: bool
) -> None:
    drawn = case(op, "float64", rows=12, form=form)
    drawn.idx = np.array([-9, -1, 0, 0, 1, 2, 3, 4, 5, 7, 8, 2**40])
    answer = post(
        client,
        op,
        **drawn.all_fields,
        want=list(WANTS),
        out_of_range="drop",
        indices_are_sorted=is_sorted,
    )
    outside = (drawn.idx < 0) | (drawn.idx >= drawn.num_segments)
    for (path, a), (_, b) in zip(leaves(answer), leaves(oracle(drawn)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=path)
        if len(a) == len(outside):
            assert not a[outside].any(), path


@pytest.mark.parametrize("drop", [False, True])
def test_a_broken_promise_of_order_is_refused(client: httpx.Client, drop: bool) -> None:
    document = refused(
        client,
        "segmented_sum",
        "idx",
        x=np.arange(6, dtype="f4"),
        idx=np.array([0, 1, 1, 0, 2, 1]),
        num_segments=3,
        indices_are_sorted=True,
        out_of_range="drop" if drop else "error",
    )
    assert document["position"] == 3


def test_a_kept_promise_of_order_changes_no_bit(client: httpx.Client) -> None:
    drawn = case("segmented_rms_norm", rows=500)
    drawn.idx = np.sort(drawn.idx)
    fields = {**drawn.all_fields, "want": list(WANTS)}
    assert_bits_equal(
        post(client, drawn.op, **fields, indices_are_sorted=True), post(client, drawn.op, **fields)
    )


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("count", [-1, True, 1.0, "5", None, [1], -(2**63)])
def test_a_number_of_segments_that_is_none_is_refused_by_name(
    client: httpx.Client, op: str, count: object
) -> None:
    refused(client, op, "num_segments", **{**case(op).fields, "num_segments": count})


@pytest.mark.parametrize("count", [np.bool_(True), np.float64(1), np.ones(1, "i4")])
def test_a_number_of_segments_from_numpy_must_be_one_integer(
    client: httpx.Client, count: Any
) -> None:
    fields = {"x": np.ones(2, "f4"), "idx": np.zeros(2, "i4")}
    refused(client, "segmented_sum", "num_segments", **fields, num_segments=count)
    assert post(client, "segmented_sum", **fields, num_segments=np.int64(1))["value"] == [2]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**40, 2**63])
def test_a_number_of_segments_beyond_the_limit_is_refused_by_name(
    client: httpx.Client, op: str, count: int
) -> None:
    body = {"x": [[1.0, 2.0, 3.0]], "y": [1.0], "v": [[1.0, 2.0, 3.0]], "m": []}
    known = {name: body[name] for name in OPERATIONS[op].operands}
    response = client.post(f"/v1/{op}", json={**known, "idx": [0], "num_segments": count})
    assert problem(response, 422, "array-too-large")["field"] == "num_segments"


@pytest.mark.parametrize("op", OPERATIONS)
def test_float64_stays_float64(client: httpx.Client, op: str) -> None:
    drawn = case(op, "float64")
    answer = post(client, op, **drawn.all_fields, want=list(WANTS))
    assert {array.dtype for _, array in leaves(answer)} == {np.dtype("float64")}
    tiny = post(
        client,
        "segmented_sum",
        x=np.array([1.0, 2.0**-40]),
        idx=np.zeros(2, "i4"),
        num_segments=1,
    )
    assert tiny["value"] == [1 + 2.0**-40]
