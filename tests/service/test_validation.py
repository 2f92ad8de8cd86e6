"""Faults of a request's fields, each named."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segops
from segops_service import Settings
from segops_service.errors import ArrayTooLargeError, InvalidArgumentError
from segops_service.operations import OPERATIONS
from segops_service.validation import validate
from tests.service.calls import IDS
from tests.service.helpers import case

SETTINGS = Settings()


def _refused(op: str, field: str, change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        validate(op, {**case(op).all_fields, **change}, SETTINGS)
    assert getattr(caught.value, "field", None) == field


@pytest.mark.parametrize(
    ("op", "field", "value"),
    [
        ("segmented_sum", "x", np.ones((40, 2), "f4")),
        ("segmented_sum", "x", np.ones((40, 3, 1), "f4")),
        ("segmented_sum", "x", np.ones((39, 3), "f4")),
        ("segmented_sum", "x", np.float32(1)),
        ("segmented_sum", "x", np.ones((), "f4")),
        ("segmented_sum", "x", [1.0]),
        ("segmented_sum", "x", None),
        ("segmented_dot", "x", np.ones(40, "f4")),
        ("segmented_dot", "y", np.ones(40, "f4")),
        ("segmented_dot", "y", np.ones((40, 3), "f8")),
        ("segmented_mul", "y", np.ones(8, "f4")),
        ("segmented_mul", "y", np.ones((7, 3), "f4")),
        ("segmented_matvec", "m", np.ones((7, 3), "f4")),
        ("segmented_matvec", "m", np.ones((7, 9), "f4")),
        ("segmented_matvec", "v", np.ones((40, 4), "f4")),
        ("segmented_sum", "idx", np.zeros((40, 1), "i4")),
        ("segmented_sum", "idx", np.zeros(40, "f4")),
        ("segmented_sum", "idx", np.zeros(40, bool)),
        ("segmented_sum", "idx", 0),
        ("segmented_sum", "want", []),
        ("segmented_sum", "want", "value"),
        ("segmented_sum", "want", ["value", "grad"]),
        ("segmented_sum", "want", [["value"]]),
        ("segmented_sum", "indices_are_sorted", 1),
        ("segmented_sum", "indices_are_sorted", None),
        ("segmented_sum", "out_of_range", "ignore"),
        ("segmented_sum", "out_of_range", True),
        ("segmented_sum", "cotangent", np.ones((7, 2), "f4")),
        ("segmented_sum", "cotangent", np.ones((7, 3), "f8")),
        ("segmented_sum", "cotangent", 1.0),
        ("segmented_sum", "tangents", [np.ones((40, 3), "f4")]),
        ("segmented_sum", "nonsense", 1),
        ("segmented_sum", "y", np.ones((40, 3), "f4")),
        ("segmented_sum", "dtype", "float32"),
    ],
)
def test_a_wrong_field_is_refused_by_name(op: str, field: str, value: object) -> None:
    _refused(op, field, {field: value}, InvalidArgumentError)


@pytest.mark.parametrize(
    ("name", "value"),
    [("y", np.ones((40, 3), "f4")), ("x", np.ones((7, 3), "f4")), ("x", np.ones((40, 3), "f8"))],
)
def test_a_wrong_tangent_is_refused_by_its_path(name: str, value: object) -> None:
    change = {"tangents": {name: value}, "want": ["jvp"]}
    _refused("segmented_sum", f"tangents.{name}", change, InvalidArgumentError)


@pytest.mark.parametrize("want", ["jvp", "hvp"])
def test_derivatives_along_a_direction_need_tangents(want: str) -> None:
    _refused("segmented_sum", "tangents", {"want": [want], "tangents": None}, InvalidArgumentError)


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_missing_field_is_refused_by_name(op: str) -> None:
    fields = case(op).fields
    for field in fields:
        with pytest.raises(InvalidArgumentError) as caught:
            validate(op, {k: v for k, v in fields.items() if k != field}, SETTINGS)
        assert caught.value.field == field


def test_the_number_of_segments_is_checked_before_anything_of_its_size() -> None:
    change = {"num_segments": 2**31 - 1, "y": np.ones(2, "f4")}
    _refused("segmented_mul", "num_segments", change, ArrayTooLargeError)


def test_wants_are_put_in_order_and_taken_once() -> None:
    fields = {**case("segmented_sum").all_fields, "want": ["vjp", "value", "vjp"]}
    assert validate("segmented_sum", fields, SETTINGS).want == ("value", "vjp")


def test_what_is_not_wanted_does_not_reach_the_engine() -> None:
    fields = case("segmented_sum").all_fields
    value = validate("segmented_sum", fields, SETTINGS)
    assert (value.cotangent, value.tangents) == (None, {})
    vjp = validate("segmented_sum", {**fields, "want": ["vjp"]}, SETTINGS)
    assert (vjp.cotangent is not None, vjp.tangents) == (True, {})
    jvp = validate("segmented_sum", {**fields, "want": ["jvp"]}, SETTINGS)
    assert (jvp.cotangent, [*jvp.tangents]) == (None, ["x"])


def test_arrays_are_taken_without_a_copy() -> None:
    drawn = case("segmented_dot")
    call = validate("segmented_dot", drawn.fields, SETTINGS)
    assert all(call.operands[name] is drawn.operands[name] for name in ("x", "y"))
    assert call.idx is drawn.idx


@pytest.mark.parametrize("op", OPERATIONS)
def test_no_rows_and_no_segments_are_valid(op: str) -> None:
    call = validate(op, case(op, rows=0, segments=0).all_fields, SETTINGS)
    assert call.num_segments == 0


def test_any_id_is_bad_without_segments() -> None:
    fields = {"x": np.ones(1, "f4"), "idx": np.zeros(1, "i4"), "num_segments": 0}
    with pytest.raises(segops.SegmentIdError) as caught:
        validate("segmented_sum", fields, SETTINGS)
    assert caught.value.position == 0


def test_tangents_are_put_in_the_order_of_the_operands() -> None:
    drawn = case("segmented_dot")
    tangents = {name: drawn.tangents[name] for name in ("y", "x")}
    fields = {**drawn.fields, "tangents": tangents, "want": ["jvp"]}
    assert [*validate("segmented_dot", fields, SETTINGS).tangents] == ["x", "y"]
    same = validate("segmented_dot", {**fields, "tangents": drawn.tangents}, SETTINGS)
    assert validate("segmented_dot", fields, SETTINGS).kind == same.kind


@given(
    st.sampled_from(IDS),
    st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**64 - 1)), max_size=12),
    st.integers(0, 8),
    st.booleans(),
    st.sampled_from(["error", "drop"]),
    st.booleans(),
)
def test_what_is_said_of_ids_is_true(
    dtype: str,
    numbers: list[int],
    segments: int,
    is_promised: bool,
    out_of_range: str,
    is_in_order: bool,
) -> None:
    limits = np.iinfo(dtype)
    ids = [min(max(number, limits.min), limits.max) for number in numbers]
    ids = sorted(ids) if is_in_order else ids
    fields = {
        "x": np.zeros(len(ids), np.float32),
        "idx": np.array(ids, dtype),
        "num_segments": segments,
        "indices_are_sorted": is_promised,
        "out_of_range": out_of_range,
    }
    bad = [row for row, number in enumerate(ids) if not 0 <= number < segments]
    falls = [row for row in range(1, len(ids)) if ids[row] < ids[row - 1]]
    is_refused = bool((bad and out_of_range == "error") or (falls and is_promised))
    for batch_rows in (0, 5, 100):
        settings = Settings(batch_rows=batch_rows)
        if is_refused:
            with pytest.raises(segops.SegmentIdError) as caught:
                validate("segmented_sum", fields, settings)
            assert caught.value.position in (bad[:1] + falls[:1])
            continue
        call = validate("segmented_sum", fields, settings)
        assert call.ids_in_range == (not bad)
        assert call.ids_ascend <= (not falls)
        if len(ids) > batch_rows or is_promised:
            assert call.ids_ascend == (not falls)


def test_ids_are_looked_at_for_order_only_where_a_launch_is_large() -> None:
    drawn = case("segmented_sum", rows=50)
    drawn.idx = np.sort(drawn.idx)
    for batch_rows, ascend in ((49, True), (50, False)):
        settings = Settings(batch_rows=batch_rows)
        assert validate("segmented_sum", drawn.fields, settings).ids_ascend is ascend


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_requests_are_of_one_kind_whatever_their_numbers(dtype: str) -> None:
    kinds = {
        validate(
            "segmented_dot",
            {**case("segmented_dot", dtype, rows=rows, seed=rows).all_fields, "want": want},
            SETTINGS,
        ).kind
        for rows in (0, 1, 50)
        for want in (["value", "hvp"], ["hvp", "value", "hvp"])
    }
    (kind,) = kinds
    assert (kind.dtype, kind.want, kind.has_cotangent) == (dtype, ("value", "hvp"), True)
