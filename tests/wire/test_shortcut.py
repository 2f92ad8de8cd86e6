"""An array map read at once is what the same map gives when it is read entry by entry."""

import itertools
import time

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segops_client.wire import Limits, WireError, packb, unpackb
from segops_client.wire._arrays import packed_array
from segops_client.wire._decode import Reader
from tests.wire.helpers import CODES, PLAIN, array_map, arrays, message, same_bits, trees

NO_LIMITS = Limits(max_bytes=2**62)


class EntryByEntry(Reader):
    """The reader without its shortcut."""

    def _packed_array(self, _):
        return None


def at_once(body, limits=NO_LIMITS):
    return packed_array(memoryview(body), 1, limits)


def outcome(reader, body, limits):
    """Return what a reader makes of a body: a value, or the fault as it is told."""
    try:
        return reader(memoryview(body).toreadonly(), limits).message()
    except WireError as error:
        return [error.field, error.reason]


def assert_same(left, right):
    """Compare two outcomes; arrays also by their type and by who may write them."""
    assert same_bits(left, right), (left, right)
    for ours, theirs in zip(leaves(left), leaves(right), strict=True):
        assert ours.dtype.str == theirs.dtype.str
        assert ours.flags.writeable is theirs.flags.writeable is False


def leaves(tree):
    if isinstance(tree, np.ndarray):
        return [tree]
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return list(itertools.chain.from_iterable(map(leaves, inner)))


def agree(body, limits=NO_LIMITS):
    assert_same(outcome(Reader, body, limits), outcome(EntryByEntry, body, limits))


LIMITS = st.builds(
    Limits,
    max_array_bytes=st.sampled_from([0, 8, 64, 2**32 - 1]),
    max_text_bytes=st.sampled_from([2, 3, 4, 5, 2**16]),
    max_depth=st.sampled_from([1, 2, 3, 4, 16]),
    max_items=st.sampled_from([0, 10, 11, 12, 13, 24, 2**16]),
)
LEADS = [b"\x85", b"\x91", b"\x9f", b"\xcc\x02", b"\xcd\0\x02", b"\xce\0\0\0\x02", b"\xd0\x02"]
WORDS = [b"\xc3", b"\xc4\x04kind", b"\xc4\x04data", b"\xc4\x00", b"\xa4type", b"|f4", b"\xa3"]
PIECES = st.binary(max_size=3) | st.sampled_from([*LEADS, *WORDS])


@settings(max_examples=400)
@given(st.data(), trees(PLAIN | arrays()), LIMITS)
def test_every_message_whole_or_damaged_reads_the_same_without_the_shortcut(data, tree, limits):
    body = bytearray(packb(tree))
    agree(body)
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(body)))
        body[position : position + data.draw(st.integers(0, 3))] = data.draw(PIECES)
    agree(body)
    agree(body, limits)


@pytest.mark.parametrize("length", [0, 1, 2**7 - 1, 2**7, 2**8, 2**16, 2**32, 2**64 - 1])
def test_every_width_of_a_dimension_reads_the_same_without_the_shortcut(length):
    for shape in ([length], [2, 3, length], [length] * 15, [length] * 16):
        agree(message(shape=shape))
        agree(message(shape=shape, type="|u1", data=bytes(min(length, 2**16))))


@pytest.mark.parametrize("limit", ["max_array_bytes", "max_text_bytes", "max_depth", "max_items"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_limit_is_kept_at_every_value_without_and_with_the_shortcut(limit, depth):
    tree = np.ones((2, 3), "f4")
    for _ in range(depth):
        tree = [tree, tree]
    for value in range(1, 64):
        agree(packb(tree), Limits(**{limit: value}))


def test_what_stands_in_place_of_a_shape_is_no_shape():
    before, _, after = message(shape=[1], data=bytes(4)).partition(b"\x91\x01")
    for lead in range(256):
        agree(before + bytes([lead]) + b"\x01" * (lead - 0x90) + after)


def test_every_byte_of_an_array_map_is_looked_at():
    body = message()
    for position, byte in itertools.product(range(len(body)), range(256)):
        agree(body[:position] + bytes([byte]) + body[position + 1 :])


def test_every_truncation_of_an_array_map_reads_the_same_without_the_shortcut():
    body = message()
    for length in range(len(body)):
        agree(body[:length])


@pytest.mark.parametrize("pack", [packb, msgpack_numpy.packb])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (1,), (1000, 3), (300, 300), (1,) * 15])
def test_what_packb_and_msgpack_numpy_write_is_read_at_once(pack, code, shape):
    array = np.ones(shape, code)
    body = pack(array)
    found, end = at_once(body)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert end == len(body)


@pytest.mark.parametrize(
    "body",
    [
        packb(np.zeros((0, 3))),
        packb(np.zeros((1,) * 16)),
        msgpack_numpy.packb(np.ones(2, ">f8")),
        msgpack.packb(dict(reversed(array_map().items()))),
        msgpack.packb({key.decode(): value for key, value in array_map().items()}),
    ],
)
def test_what_is_written_otherwise_is_read_entry_by_entry(body):
    assert at_once(body) is None
    assert isinstance(unpackb(body), np.ndarray)


def test_arrays_within_the_shapes_of_arrays_take_no_time():
    inner = 0
    for _ in range(7):
        inner = array_map(shape=[inner])
    begin = time.process_time()
    with pytest.raises(WireError):
        unpackb(msgpack.packb(inner))
    assert time.process_time() - begin < 0.1
