"""Values are those of a NumPy loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.library.helpers import (
    CASES,
    PROBLEMS,
    SEGMENTS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    named,
    problem,
)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_value_is_the_loop_over_rows(p, run):
    assert_close(run(p.function)(*p.operands), p.expected, rtol=1e-14)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_float32_value_is_the_float64_loop_rounded(p, run):
    p = p.astype(np.float32)
    expected = p.expected.astype(np.float32)
    assert_close(run(p.function)(*p.operands), expected, rtol=2.4e-7, atol=0)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_promise_of_order_changes_no_bit(case, run):
    promised = problem(case, ordered=True)
    shuffled = problem(case, promised.idx)
    assert_same_bits(
        run(promised.function)(*promised.operands), run(shuffled.function)(*promised.operands)
    )


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize(("rows", "segments"), [(0, 3), (4, 0), (0, 0)])
def test_no_rows_or_no_segments_give_zeros_of_the_right_shape(case, rows, segments, run):
    p = problem(case, np.zeros(rows, np.int32), segments)
    assert_same_bits(run(p.function)(*p.operands), p.expected)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_all_ids_out_of_range_give_zeros(case, run):
    p = problem(case, np.array([-1, SEGMENTS, -(2**31), 2**31 - 1], np.int32))
    assert_same_bits(run(p.function)(*p.operands), np.zeros_like(p.expected))


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_numpy_jax_and_nested_lists_are_one(p):
    expected = p.value
    assert_same_bits(p.function(*map(jnp.asarray, p.operands), idx=jnp.asarray(p.idx)), expected)
    lists = [a.tolist() for a in p.operands]
    assert_same_bits(p.function(*lists, idx=p.idx.tolist()), expected)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_arrays_that_are_not_contiguous_are_read_as_they_index(case):
    p = problem(case)
    strided = [np.repeat(np.asfortranarray(a), 2, axis=0)[::2] for a in p.operands]
    assert not all(a.flags.c_contiguous for a in strided)
    assert_same_bits(p.function(*strided, idx=np.repeat(p.idx, 2)[::2]), p.value)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_value_is_a_strongly_typed_array(case):
    value = problem(case).value
    assert isinstance(value, jax.Array)
    assert not value.weak_type


@pytest.mark.parametrize("case", CASES, ids=named)
def test_one_segment_and_one_row_work(case, run):
    p = problem(case, np.zeros(1, np.int32), 1)
    assert_close(run(p.function)(*p.operands), p.expected, rtol=1e-14)
