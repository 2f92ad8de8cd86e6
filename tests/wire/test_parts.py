"""A message in parts is the message, and shares the memory of the large arrays in it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_client.wire import WireError, pack_parts, packb
from tests.wire.helpers import LAYOUTS, PLAIN, arrays, trees

LARGE = 2**16


@st.composite
def large_arrays(draw):
    """Draw arrays on both sides of the size from which they are parts of their own."""
    dtype = draw(st.sampled_from(["|u1", "|b1", "<f4", ">f4", "<f8", ">i8"]))
    size = LARGE // np.dtype(dtype).itemsize + draw(st.integers(-2, 2))
    array = np.arange(size).reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1)]))).astype(dtype)
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](array)


def of_binary(size):
    return st.sampled_from([bytes, bytearray, memoryview]).map(lambda kind: kind(b"b" * size))


LEAVES = PLAIN | arrays() | large_arrays() | of_binary(LARGE - 1) | of_binary(LARGE)


@given(trees(LEAVES))
def test_the_parts_joined_are_the_message(tree):
    assert b"".join(pack_parts(tree)) == packb(tree)


@given(trees(LEAVES))
def test_a_view_is_flat_bytes_of_large_data_and_no_two_joined_parts_are_neighbours(tree):
    parts = pack_parts(tree)
    for before, part in zip([memoryview(b""), *parts], parts, strict=False):
        if isinstance(part, memoryview):
            assert (part.format, part.ndim, part.itemsize) == ("B", 1, 1)
            assert len(part) >= LARGE
        else:
            assert part
            assert isinstance(before, memoryview)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i8", "|u1", "|b1"])
def test_a_large_array_is_shared_and_not_copied(dtype):
    array = np.ones((2**20, 3), dtype)
    tracemalloc.start()
    try:
        parts = pack_parts({"value": array, "vjp": {"x": array, "y": array[::2]}})
        copied = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    shared = [part for part in parts if isinstance(part, memoryview)]
    assert len(shared) == 3
    assert np.shares_memory(shared[0], array)
    assert np.shares_memory(shared[1], array)
    assert copied < array.nbytes // 2 + 2**19


@pytest.mark.parametrize("view", [memoryview(np.ones(2**15, ">i4")), memoryview(bytes(2**16))[::1]])
def test_a_large_binary_is_shared_whatever_it_holds(view):
    (shared,) = [part for part in pack_parts([view]) if isinstance(part, memoryview)]
    assert np.shares_memory(shared, view)


def test_a_part_shows_what_its_array_holds_when_it_is_sent():
    array = np.zeros(LARGE, "u1")
    parts = pack_parts(array)
    array[:] = 7
    assert b"".join(parts) == packb(array)


def test_a_message_without_large_arrays_is_one_part():
    answer = {"value": np.zeros((50, 3), "f4"), "vjp": {"x": np.zeros((1000, 3), "f4")}}
    assert pack_parts(answer) == [packb(answer)]


def test_a_refused_value_is_refused_in_parts_too():
    with pytest.raises(WireError, match="vjp"):
        pack_parts({"value": np.zeros(LARGE), "vjp": object()})
