"""Batches: every call's arrays at their place, its ids its own, and nothing written to."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_service import batches
from segops_service.calls import Call
from segops_service.operations import fill
from tests.service.calls import FORMS, IDS, at, changed
from tests.service.helpers import WANTS, Array, assert_bits_equal, case, leaves

sizes = st.tuples(st.integers(0, 30), st.integers(0, 12))
forms = st.sampled_from(FORMS)


def _calls(form: tuple[str, int], drawn: list[tuple[int, int]], seed: int) -> list[Call]:
    """Calls of one kind, of drawn sizes, whose arrays cannot be written to."""
    op, number = form
    rng = np.random.default_rng(seed)
    calls = []
    for rows, segments in drawn:
        call = case(op, rows=rows, segments=segments, form=number, seed=seed).call(*WANTS)
        ids = rng.integers(-3, segments + 4, rows).astype(rng.choice(["int8", "int32", "int64"]))
        call = replace(call, idx=ids, ids_in_range=bool(((ids >= 0) & (ids < segments)).all()))
        calls.append(changed(call, lambda array: at(int(rng.integers(0, 64)), array)))
    return calls


def _sizes(calls: list[Call]) -> tuple[int, int]:
    return sum(call.rows for call in calls), sum(call.num_segments for call in calls)


@given(forms, st.lists(sizes, min_size=1, max_size=5), sizes, st.integers(0, 9))
def test_every_id_leads_to_its_own_segment_or_to_none(
    form: tuple[str, int], drawn: list[tuple[int, int]], padding: tuple[int, int], seed: int
) -> None:
    calls = _calls(form, drawn, seed)
    rows, segments = np.add(_sizes(calls), padding)
    ids = batches.assemble(calls, int(rows), int(segments))[1]
    assert (ids.dtype, ids.shape) == (np.int32, (rows,))
    row = offset = 0
    for call in calls:
        for given_id in call.idx.tolist():
            if 0 <= given_id < call.num_segments:
                assert ids[row] == offset + given_id
            else:
                assert not 0 <= ids[row] < segments
            row += 1
        offset += call.num_segments
    assert ((ids[row:] < 0) | (ids[row:] >= segments)).all()


@given(forms, st.lists(sizes, min_size=1, max_size=5), sizes, st.integers(0, 9))
def test_every_array_is_where_its_rows_or_segments_are(
    form: tuple[str, int], drawn: list[tuple[int, int]], padding: tuple[int, int], seed: int
) -> None:
    calls = _calls(form, drawn, seed)
    rows, segments = (int(size) for size in np.add(_sizes(calls), padding))
    operands, ids, cotangent, tangents = batches.assemble(calls, rows, segments)
    layouts = calls[0].kind.form
    for name, array in operands.items():
        assert array.shape == fill(layouts.operands[name], rows, segments)
    # Operands, tangents and the cotangent have the shapes of an answer, so it takes them apart.
    answer = {"value": cotangent, "vjp": operands, "jvp": cotangent, "hvp": tangents}
    for call, part in zip(calls, batches.split(answer, calls), strict=True):
        expected = (call.cotangent, call.operands, call.cotangent, call.tangents)
        assert_bits_equal(part, dict(zip(WANTS, expected, strict=True)))
    for _, array in leaves({"ids": ids, **answer}):
        assert not array.size or array.ctypes.data % 64 == 0 or _is_given(array, calls)


def _is_given(array: Array, calls: list[Call]) -> bool:
    return any(
        array is other
        for call in calls
        for other in (call.cotangent, *call.operands.values(), *call.tangents.values())
    )


@pytest.mark.parametrize("dtype", IDS)
@pytest.mark.parametrize("is_known", [False, True])
def test_ids_of_every_type_move_beyond_what_their_type_can_hold(dtype: str, is_known: bool) -> None:
    segments = 120
    ids = np.array([0, 119, 5], dtype)
    call = replace(
        case("segmented_sum", rows=3, segments=segments).call(), idx=ids, ids_in_range=is_known
    )
    moved = batches.assemble([call] * 4, 12, 480)[1]
    assert moved.tolist() == [int(i) + 120 * place for place in range(4) for i in ids]


@pytest.mark.parametrize("dtype", IDS)
def test_ids_that_their_type_alone_can_hold_lead_nowhere(dtype: str) -> None:
    limits = np.iinfo(dtype)
    segments = 100 if dtype == "int8" else 200
    ids = np.array([limits.max, limits.min, 7, limits.max - 1], dtype)
    call = replace(
        case("segmented_sum", rows=4, segments=segments).call(), idx=ids, ids_in_range=False
    )
    inside = [i if 0 <= i < segments else None for i in ids.tolist()]
    expected = [i if i is None else offset + i for offset in (0, segments) for i in inside]
    assert expected[2] == 7
    assert None in expected
    moved = batches.assemble([call, call], 8, 2 * segments)[1]
    assert [int(i) if 0 <= i < 2 * segments else None for i in moved] == expected


@pytest.mark.parametrize("count", [0, 1, 2**31 - 1])
def test_a_padded_row_has_no_segment_however_many_there_are(count: int) -> None:
    call = case("segmented_sum", rows=0, segments=count and 1).call()
    ids = batches.assemble([replace(call, num_segments=count)], 3, 0)[1]
    assert not ((ids >= 0) & (ids < count)).any()


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 10), st.integers(0, 5))
def test_ids_that_ascend_still_do(ids: list[int], segments: int, padding: int) -> None:
    call = replace(
        case("segmented_sum", rows=len(ids), segments=segments).call(),
        idx=np.array(sorted(ids), np.int64),
        ids_in_range=False,
    )
    moved = batches.assemble([call], call.rows + padding, segments)[1]
    assert (moved[1:] >= moved[:-1]).all()


def test_arrays_of_the_right_size_are_not_copied() -> None:
    call = case("segmented_dot").call(*WANTS)
    operands, _, cotangent, tangents = batches.assemble([call], call.rows, call.num_segments)
    assert cotangent is call.cotangent
    for name in ("x", "y"):
        assert operands[name] is call.operands[name]
        assert tangents[name] is call.tangents[name]


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for mask in range(1, 2 ** len(names)):
        yield tuple(name for bit, name in enumerate(names) if mask >> bit & 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_the_bytes_of_a_launch_are_those_of_its_arrays(op: str, form: int, dtype: str) -> None:
    drawn = case(op, dtype, rows=20, segments=6, form=form)
    operands, _, value, _ = batches.assemble([drawn.call(*WANTS)], 25, 9)
    shapes = {"value": value, "vjp": operands, "jvp": value, "hvp": operands}
    for want in _subsets(WANTS):
        call = drawn.call(*want)
        parts = [*batches.assemble([call], 25, 9), *(shapes[name] for name in want)]
        arrays = [array for part in parts if part is not None for _, array in leaves(part)]
        assert batches.device_bytes(call.kind, 25, 9) == sum(array.nbytes for array in arrays)
