"""Ids of every integer type, as arrays and lists, with and without x64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.helpers import CASES, assert_same_bits, loss, named, operands_of, problem

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
SEGMENTS = 5
VALID = [3, 0, 1, 3, 4, 0]


def extremes(dtype):
    """Return ids out of range: near it, the type's ends, and those that wrap into it in 32 bits."""
    info = np.iinfo(dtype)
    near = {-1, SEGMENTS, -SEGMENTS, info.min, info.max, info.max - 1}
    wrapping = {2**8, 2**16 + 1, 2**31, 2**32, 2**32 + 3, 2**63, 2**64 - 2**32 + 1, 3 - 2**32}
    return sorted(i for i in near | wrapping if info.min <= i <= info.max and not 0 <= i < SEGMENTS)


def expected_of(case, operands, outside):
    return case.oracle(*operands, [-1] * len(outside) + VALID, SEGMENTS)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_every_integer_type_labels_the_same_rows(case, dtype, array, run):
    outside = extremes(dtype)
    ids = array(np.array(outside + VALID, dtype))
    operands = operands_of(case, len(ids), SEGMENTS)
    reference = problem(case, [-1] * len(outside) + VALID, SEGMENTS)
    actual = run(lambda *u: case.op(*u, ids, SEGMENTS))(*operands)
    assert ids.dtype == dtype
    assert_same_bits(actual, reference.value)
    np.testing.assert_allclose(actual, expected_of(case, operands, outside), rtol=1e-14)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("ordered", [False, True])
def test_traced_ids_of_every_integer_type_label_the_same_rows(dtype, ordered):
    ids = np.array(extremes(dtype) + VALID, dtype)
    ids = np.sort(ids) if ordered else ids
    x = np.arange(1.0, len(ids) + 1)
    traced = jax.jit(lambda x, i: segops.segmented_sum(x, i, SEGMENTS, indices_are_sorted=ordered))
    keep = [s if 0 <= (s := int(i)) < SEGMENTS else -1 for i in ids]
    assert_same_bits(traced(x, ids), CASES[0].oracle(x, keep, SEGMENTS))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_more_segments_than_the_id_type_can_name(dtype):
    info = np.iinfo(dtype)
    ids = np.array([0, info.max, info.max, info.max - 1], dtype)
    segments = info.max + 2
    expected = np.zeros(segments)
    expected[[0, info.max, info.max - 1]] = [1, 5, 4]
    assert_same_bits(segops.segmented_sum(np.array([1.0, 2, 3, 4]), ids, segments), expected)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_row_with_an_id_that_wraps_gets_exactly_zero_gradient(case, dtype):
    outside = extremes(dtype)
    ids = np.array(outside + VALID, dtype)
    operands = operands_of(case, len(ids), SEGMENTS)
    gradient = jax.grad(loss(lambda *u: case.op(*u, ids, SEGMENTS)))(*operands)
    assert not gradient[: len(outside)].any()
    assert gradient[len(outside) :].any()


@pytest.mark.parametrize("case", CASES, ids=named)
def test_lists_and_tuples_of_ids_work(case):
    operands = operands_of(case, len(VALID), SEGMENTS)
    expected = case.op(*operands, np.array(VALID, np.int32), SEGMENTS)
    assert_same_bits(case.op(*operands, VALID, SEGMENTS), expected)
    assert_same_bits(case.op(*operands, tuple(VALID), SEGMENTS), expected)


def test_empty_list_of_ids_is_no_rows():
    x = np.zeros((0, 3))
    assert_same_bits(segops.segmented_sum(x, [], 2), np.zeros((2, 3)))
    assert_same_bits(segops.segmented_mul(x, np.ones(2), [], 2), np.zeros((0, 3)))


@pytest.mark.parametrize(
    "ids",
    [
        np.array([2**32, 2**32 + 1, -(2**32), 1, 2**63 - 1, -(2**63)]),
        np.array([2**32, 2**32 + 1, 2**63, 1, 2**64 - 1, 2**31], np.uint64),
        [2**32, 2**32 + 1, -(2**32), 1, 2**62, -(2**62)],
    ],
    ids=["int64", "uint64", "list"],
)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_64_bit_ids_do_not_wrap_where_jax_has_no_64_bits(case, ids):
    operands = operands_of(case, 6, 2, dtype=np.float32)
    with jax.enable_x64(False):
        actual = case.op(*operands, ids, 2)
        expected = case.op(*operands, np.array([-1, -1, -1, 1, -1, -1], np.int32), 2)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("width", ["i2", "i4", "i8", "u4"])
def test_byte_order_of_ids_and_rows_is_read(order, width):
    x = np.arange(1.0, 7).astype(f"{order}f8")
    actual = segops.segmented_sum(x, np.array(VALID, f"{order}{width}"), SEGMENTS)
    assert_same_bits(actual, CASES[0].oracle(x, VALID, SEGMENTS))
