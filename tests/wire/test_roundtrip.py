"""What is sent is what arrives: every type, shape and memory layout, bit for bit."""

import numpy as np
import pytest
from hypothesis import given

from segops_client.wire import packb, unpackb
from tests.wire.helpers import PLAIN, arrays, same_bits, trees


def little(array):
    return array.astype(array.dtype.newbyteorder("<"))


@given(arrays())
def test_any_array_arrives_with_its_shape_type_and_bits(array):
    received = unpackb(packb(array))
    assert received.dtype == little(array).dtype
    assert received.dtype.isnative
    assert same_bits(received, little(array))


@given(trees(PLAIN | arrays().map(little)))
def test_any_tree_of_values_and_arrays_arrives_unchanged(tree):
    assert same_bits(unpackb(packb(tree)), tree)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((128, 128), "f4")[10:100, 10:13],
        np.arange(10)[::2],
        np.arange(12.0).reshape(4, 3)[::-1],
        np.broadcast_to(np.float32(2), (4, 3)),
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.float32(7).reshape(()),
        np.zeros((0, 3), "f4"),
        np.zeros((3, 0), "f4"),
        np.zeros(0, "i8"),
    ],
    ids=lambda array: f"{array.shape}{array.strides}",
)
def test_memory_layout_does_not_reach_the_receiver(array):
    received = unpackb(packb({"x": array}))["x"]
    assert received.flags.c_contiguous
    np.testing.assert_array_equal(received, array)
    assert received.shape == array.shape


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan_payloads_infinities_and_negative_zero_keep_their_bits(dtype):
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324], dtype)
    special.view("u1")[0] ^= 1
    assert same_bits(unpackb(packb(special)), special)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i4", ">u2"])
def test_big_endian_arrays_arrive_native_with_equal_values(dtype):
    array = np.arange(12).reshape(4, 3).astype(dtype)
    received = unpackb(packb(array))
    assert received.dtype.str == "<" + dtype[1:]
    np.testing.assert_array_equal(received, array)


def test_tuples_and_array_subclasses_arrive_as_lists_and_plain_arrays():
    class Tagged(np.ndarray):
        pass

    received = unpackb(packb([(1, "a"), np.arange(3).view(Tagged)]))
    assert received[0] == [1, "a"]
    assert type(received[1]) is np.ndarray


def test_binaries_are_bytes_outside_arrays():
    binary = b"abcdef"
    sent = [binary, bytearray(binary), memoryview(binary), memoryview(binary)[::-2]]
    assert unpackb(packb(sent)) == [binary, binary, binary, b"fdb"]


@pytest.mark.parametrize("size", [350_000, 101 * 2**18])
def test_arrays_beyond_the_default_buffers_of_msgpack_arrive(size):
    array = np.arange(size, dtype="<f4")
    np.testing.assert_array_equal(unpackb(packb(array)), array)


@pytest.mark.parametrize("body_type", [bytes, bytearray, memoryview])
def test_decoding_copies_no_array_data(body_type):
    body = body_type(packb({"x": np.arange(2**20, dtype="<f8")}))
    received = unpackb(body)["x"]
    assert np.shares_memory(received, np.frombuffer(body, "u1"))


@pytest.mark.parametrize("body_type", [bytes, bytearray])
def test_decoded_arrays_cannot_be_written(body_type):
    received = unpackb(body_type(packb([np.arange(3), np.arange(3, dtype=">i4")])))
    for array in received:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_every_byte_offset_yields_an_array_that_numpy_computes_with():
    array = np.arange(12.0).reshape(4, 3)
    for padding in range(16):
        received = unpackb(packb({"k" * (padding + 1): array}))["k" * (padding + 1)]
        np.testing.assert_array_equal(received @ received.T, array @ array.T)
        aligned = np.require(received, requirements="A")
        assert aligned.flags.aligned
        np.testing.assert_array_equal(aligned, array)
