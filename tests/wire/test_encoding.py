"""What cannot be sent is refused before anything is copied, and the error names the field."""

import pickle
import tracemalloc

import numpy as np
import pytest

from segops_client.wire import WireError, packb


def refused(value):
    with pytest.raises(WireError) as caught:
        packb({"x": value})
    assert caught.value.field.startswith("x")
    return caught.value


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, "f2"),
        np.zeros(3, "c8"),
        np.zeros(3, np.longdouble),
        np.array(["a"]),
        np.array([b"a"]),
        np.array([None]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(3, [("a", "f4")]),
        np.zeros(3, "V4"),
        np.float16(1),
        np.complex64(1),
        np.datetime64("2020-01-01"),
    ],
    ids=lambda array: f"{type(array).__name__}-{array.dtype}",
)
def test_an_array_type_outside_the_format_is_refused(array):
    assert str(array.dtype) in refused(array).reason


@pytest.mark.parametrize("size", [2**30, 2**32, 2**40])
def test_data_beyond_a_msgpack_binary_is_refused_without_being_materialised(size):
    array = np.broadcast_to(np.float32(1), size)
    tracemalloc.start()
    try:
        assert "2**32" in refused(array).reason or "4294967295" in refused(array).reason
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_nothing_is_copied_before_the_whole_message_is_accepted():
    large = np.broadcast_to(np.float32(1), 2**28)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            packb({"x": large, "y": object()})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_one_copy_of_a_contiguous_array_is_made():
    array = np.zeros(2**22, "f4")
    tracemalloc.start()
    try:
        body = packb(array)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, range(3), np.dtype("f4"), len])
def test_a_python_object_outside_the_format_is_refused_by_type(value):
    assert type(value).__name__ in refused(value).reason


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**100])
def test_an_integer_beyond_64_bits_is_refused(number):
    refused(number)


def test_text_that_has_no_utf8_is_refused():
    refused("\ud800")
    refused({"\ud800": 1})


@pytest.mark.parametrize("key", [1, None, b"key", ("a",), "k" * 256, "é" * 128])
def test_a_key_that_no_peer_may_send_is_refused(key):
    assert "keys" in refused({key: 1}).reason


def test_a_container_that_holds_itself_is_refused():
    endless: list = []
    endless.append({"again": endless})
    assert "deep" in refused(endless).reason


def test_the_error_names_the_path_to_the_value():
    assert refused([{"a": [1, 2j]}]).field == "x[0].a[1]"


def test_an_error_survives_pickling_between_processes():
    error = pickle.loads(pickle.dumps(refused(1j)))
    assert (error.field, str(error)) == ("x", "x: a complex cannot be sent")
