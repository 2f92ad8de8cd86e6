"""An unpatched msgpack_numpy peer, and plain msgpack, on the other end."""

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given

from segops_client.wire import packb, unpackb
from tests.wire.helpers import CODES, PLAIN, array_map, arrays, same_bits, trees


@given(arrays())
def test_our_bytes_are_those_of_msgpack_numpy(array):
    native = array.astype(array.dtype.newbyteorder("<"), order="C")
    assert packb({"x": array}) == msgpack_numpy.packb({"x": native})


@given(arrays())
def test_msgpack_numpy_reads_our_arrays(array):
    received = msgpack_numpy.unpackb(packb(array))
    assert received.shape == array.shape
    np.testing.assert_array_equal(received, array)


@given(arrays())
def test_we_read_arrays_of_msgpack_numpy(array):
    received = unpackb(msgpack_numpy.packb({"x": array}))["x"]
    assert received.shape == array.shape
    assert received.dtype.isnative
    np.testing.assert_array_equal(received, array)


@pytest.mark.parametrize("code", CODES)
def test_scalars_of_msgpack_numpy_arrive_as_arrays_without_dimensions(code):
    scalar = np.dtype(code).type(1)
    received = unpackb(msgpack_numpy.packb({"n": scalar}))["n"]
    assert np.shape(received) == ()
    assert received == scalar


@pytest.mark.parametrize("code", CODES)
def test_our_scalars_are_those_of_msgpack_numpy(code):
    scalar = np.dtype(code).type(1)
    assert packb(scalar) == msgpack_numpy.packb(scalar)
    assert msgpack_numpy.unpackb(packb(scalar)) == scalar


def test_array_maps_with_string_keys_are_arrays():
    text_keys = {key.decode(): value for key, value in array_map().items()}
    received = unpackb(msgpack.packb(text_keys | {"kind": ""}))
    assert received.shape == (2, 3)


def test_array_maps_are_read_in_any_order_of_keys():
    backwards = dict(reversed(array_map().items()))
    assert unpackb(msgpack.packb(backwards)).shape == (2, 3)


def test_array_maps_of_old_msgpack_numpy_have_no_kind():
    assert unpackb(msgpack.packb(array_map(kind=...))).shape == (2, 3)


@given(trees(PLAIN))
def test_plain_msgpack_reads_and_writes_the_same_values(tree):
    assert same_bits(msgpack.unpackb(packb(tree)), tree)
    assert same_bits(unpackb(msgpack.packb(tree)), tree)


@pytest.mark.parametrize("number", [0, 127, 128, 2**16, 2**32, 2**64 - 1, -32, -33, -(2**63)])
def test_every_width_of_integer_is_read(number):
    assert unpackb(msgpack.packb(number)) == number


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65_535])
def test_every_width_of_string_binary_list_and_map_is_read(size):
    limited = min(size, 20_000)
    sent = ["s" * size, b"b" * size, [None] * limited, {str(i): i for i in range(limited)}]
    assert unpackb(msgpack.packb(sent)) == sent


def test_single_precision_floats_are_read():
    assert unpackb(msgpack.packb(0.5, use_single_float=True)) == 0.5
