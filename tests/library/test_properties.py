"""Random problems against NumPy in float64: shapes, orders, gaps, ids out of range, dtypes."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import segops
from tests.library.axes import (
    answers,
    assert_rows_dropped,
    cotangent_of,
    each_case,
    tangents_of,
)
from tests.library.helpers import Problem, assert_same_bits, operands_of

# JAX compiles by shape: few shapes, many problems.
SHAPES = [(0, 4), (7, 0), (1, 1), (7, 4), (40, 4), (40, 30)]
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
UNIT = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}

moderately = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def labels(draw, rows, segments):
    """Draw ids of any integer type: mostly in range, some anywhere, in any order."""
    kind = draw(st.sampled_from(INTEGERS))
    limits = np.iinfo(kind)
    near = st.integers(max(limits.min, -2), min(limits.max, segments + 1))
    anywhere = st.integers(int(limits.min), int(limits.max))
    ids = draw(st.lists(st.one_of(near, near, near, anywhere), min_size=rows, max_size=rows))
    return np.array(ids, kind)


@st.composite
def problems(draw, case, dtypes=(np.float32, np.float64)):
    """Draw a problem of a case, its numbers over many powers of ten."""
    rows, segments = draw(st.sampled_from(SHAPES))
    idx, dtype = draw(labels(rows, segments)), draw(st.sampled_from(dtypes))
    ordered = draw(st.booleans())
    power = draw(st.sampled_from([0, 3, 8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    operands = tuple(
        (a * 10.0 ** rng.integers(-power, power + 1, a.shape)).astype(dtype)
        for a in operands_of(case, rows, segments, seed=int(rng.integers(2**16)))
    )
    return Problem(case, operands, np.sort(idx) if ordered else idx, segments, ordered)


def magnitude(p):
    """Return the oracle's result on absolute values, to which rounding errors are relative."""
    return p.case.oracle(*(np.abs(a) for a in p.operands), p.idx, p.num_segments)


@each_case
@moderately
@given(data=st.data())
def test_value_is_the_oracle_s(case, data):
    p = data.draw(problems(case))
    value, expected = p.value, p.expected
    dtype = p.operands[0].dtype
    assert (value.shape, value.dtype) == (expected.shape, dtype)
    # One rounding to the result, and the oracle's own in float64.
    bound = 2 * UNIT[dtype] * np.abs(expected) + 64 * 2.0**-53 * magnitude(p)
    assert (np.abs(np.asarray(value, np.float64) - expected) <= bound).all()


@each_case
@moderately
@given(data=st.data())
def test_out_of_range_rows_are_as_if_absent(case, data):
    p = data.draw(problems(case))
    assert_rows_dropped(p, ~p.valid)


@each_case
@moderately
@given(data=st.data())
def test_promise_of_order_is_not_seen_in_the_bits(case, data):
    p = data.draw(problems(case))
    p = replace(p, idx=np.sort(p.idx))
    values = [np.asarray(replace(p, indices_are_sorted=o).value).tobytes() for o in (False, True)]
    assert values[0] == values[1]


@each_case
@moderately
@given(data=st.data())
def test_forward_and_reverse_mode_are_adjoint_to_each_other(case, data):
    p = data.draw(problems(case, dtypes=(np.float64,)))
    g, t = cotangent_of(p), tangents_of(p)
    results = answers(p, g, t)
    forward = np.vdot(g, results["jvp"])
    terms = [np.asarray(results["vjp"][name]) * t[name] for name in t]
    reverse = sum(float(np.sum(term)) for term in terms)
    scale = sum(float(np.sum(np.abs(term))) for term in terms)
    scale += float(np.sum(np.abs(g * np.asarray(results["jvp"]))))
    if case.name in ("dot", "mul", "matvec"):
        wide = replace(p, operands=tuple(np.abs(a) for a in p.operands))
        size = {name: np.abs(a) for name, a in t.items()}
        scale += float(np.vdot(np.abs(g), answers(wide, np.abs(g), size)["jvp"]))
    assert abs(forward - reverse) <= 1e-13 * scale


@each_case
@moderately
@given(data=st.data())
def test_batch_is_the_stack_of_its_members(case, data):
    first = data.draw(problems(case))
    second = replace(
        first,
        idx=np.array(data.draw(st.permutations(first.idx.tolist())), first.idx.dtype),
        indices_are_sorted=False,
    )
    first = replace(first, indices_are_sorted=False)
    together = jax.vmap(lambda i: first.function(*first.operands, idx=i))(
        np.stack([first.idx, second.idx])
    )
    for k, p in enumerate((first, second)):
        assert np.asarray(together[k]).tobytes() == np.asarray(p.value).tobytes()


@pytest.mark.parametrize("op", [segops.segmented_sum, segops.segmented_mean])
@moderately
@given(data=st.data())
def test_result_is_linear_in_powers_of_two(op, data):
    rows, segments = 40, 4
    idx = data.draw(labels(rows, segments))
    scale = 2.0 ** data.draw(st.integers(-60, 60))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(rows, 3))
    np.testing.assert_array_equal(op(x * scale, idx, segments), op(x, idx, segments) * scale)


@moderately
@given(data=st.data())
def test_check_agrees_with_the_ids(data):
    rows, segments = data.draw(st.sampled_from(SHAPES))
    idx = data.draw(labels(rows, segments))
    ids = idx.tolist()
    outside = [k for k, i in enumerate(ids) if not 0 <= i < segments]
    falls = [k for k in range(1, len(ids)) if ids[k] < ids[k - 1]]
    for ordered in (False, True):
        expected = outside[:1] or (falls[:1] if ordered else [])
        if expected:
            with pytest.raises(segops.SegmentIdError) as raised:
                segops.check_segment_ids(idx, segments, indices_are_sorted=ordered)
            assert raised.value.position == expected[0]
        else:
            segops.check_segment_ids(idx, segments, indices_are_sorted=ordered)


@each_case
@moderately
@given(data=st.data())
def test_broken_promise_of_order_adds_no_foreign_numbers(case, data):
    p = data.draw(problems(case))
    p = replace(p, idx=data.draw(labels(len(p.idx), p.num_segments)), indices_are_sorted=True)
    for a in jax.tree.leaves(answers(p)):
        assert np.isfinite(a).all()
    if case.broadcasts:
        assert_same_bits(p.value, replace(p, indices_are_sorted=False).value)
    else:
        whole = replace(p, idx=np.zeros(len(p.idx), np.int32), num_segments=1)
        most = magnitude(whole) * (len(p.idx) if case.name.startswith(("mean", "rms")) else 1)
        assert (np.abs(p.value) <= most * (1 + 1e-5)).all()
