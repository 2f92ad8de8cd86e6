"""Bodies made to hurt: each is a WireError that names its field, cheaply."""

import contextlib
import pickle
import time
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_client.wire import DTYPES, WireError, packb, unpackb
from tests.wire.helpers import PLAIN, array_map, arrays, message, trees

REQUEST = {
    "x": np.ones((4, 3), "f4"),
    "idx": np.arange(4),
    "num_segments": 3,
    "want": ["value", "vjp"],
    "tangents": {"x": np.zeros((4, 3), "f4")},
}

BODIES = {
    "nothing": (b"", ""),
    "a list of 2**32 - 1 elements": (b"\xdd\xff\xff\xff\xff", ""),
    "a map of 2**32 - 1 entries": (b"\xdf\xff\xff\xff\xff", ""),
    "a binary of 2**32 - 1 bytes": (b"\xc6\xff\xff\xff\xff", ""),
    "a string of 2**32 - 1 bytes": (b"\xdb\xff\xff\xff\xff", ""),
    "nine bytes that exhausted memory": (b"\x9f\xfdt\xf7\xddt\xff\xfd\xbd", ""),
    "a megabyte of empty maps": (b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20, ""),
    "lists nested 100 000 deep": (b"\x91" * 100_000, "[0]" * 16),
    "maps nested 100 000 deep": (b"\x81\xa1a" * 100_000, ".".join("a" * 16)),
    "bytes after the end": (packb({}) + b"\x00", ""),
    "the byte msgpack never uses": (b"\xc1", ""),
    "an extension": (msgpack.packb({"x": msgpack.ExtType(5, b"x")}), "x"),
    "a large extension": (msgpack.packb({"x": msgpack.ExtType(5, bytes(300))}), "x"),
    "a timestamp": (msgpack.packb({"t": msgpack.Timestamp(1)}), "t"),
    "a key twice": (b"\x82\xa1a\x01\xa1a\x02", "a"),
    "an integer key": (msgpack.packb({1: 2}), ""),
    "a nil key": (msgpack.packb({None: 2}), ""),
    "a list as key": (b"\x81\x90\x01", ""),
    "a binary key outside an array": (msgpack.packb({"m": {b"x": 1}}), "m"),
    "a string that is not UTF-8": (b"\x81\xa1a\xa1\xff", "a"),
    "a key that is not UTF-8": (b"\x81\xa1\xff\x01", ""),
    "a lone surrogate": (b"\x81\xa1a\xa3\xed\xa0\x80", "a"),
    "a key of a kilobyte": (msgpack.packb({"k" * 1000: 1}), ""),
    "a string of a megabyte": (msgpack.packb({"s": "s" * 2**20}), "s"),
    "a fault in a list": (msgpack.packb({"want": ["value", {1: 1}]}), "want[1]"),
    "a fault in a nested map": (msgpack.packb({"a": {"b": {1: 1}}}), "a.b"),
    "a key under both its names": (
        b"\x81\xa1x\x86" + msgpack.packb(array_map())[1:] + b"\xa4kind\xa0",
        "x.kind",
    ),
}

ARRAYS = {
    "nd that is 1": ({"nd": 1}, "nd"),
    "nd that is nil": ({"nd": None}, "nd"),
    "no type": ({"type": ...}, "type"),
    "no shape": ({"shape": ...}, "shape"),
    "no data": ({"data": ...}, "data"),
    "an unknown key": ({"order": "F"}, "order"),
    "an object type": ({"type": "|O", "shape": [1], "data": b"A" * 8}, "type"),
    "an object type of msgpack_numpy": ({"kind": b"O", "type": "|O", "shape": [1]}, "kind"),
    "a void type": ({"type": "|V0", "shape": [2**40], "data": b""}, "type"),
    "a structured type": ({"kind": b"V", "type": [["a", "|O"], ["b", "<f4"]]}, "kind"),
    "a structured type without kind": ({"type": [["a", "|O"]]}, "type"),
    "a type by comma": ({"type": "f4,O"}, "type"),
    "a complex type": ({"type": "<c8", "shape": [3]}, "type"),
    "a half type": ({"type": "<f2", "shape": [12]}, "type"),
    "a bytes type": ({"type": "|S8", "shape": [3]}, "type"),
    "a text type": ({"type": "<U2", "shape": [3]}, "type"),
    "a date type": ({"type": "<M8[ns]", "shape": [3]}, "type"),
    "a type without byte order": ({"type": "f4"}, "type"),
    "a python type": ({"type": "float"}, "type"),
    "a type that is a number": ({"type": 7}, "type"),
    "a type that is an array": ({"type": array_map()}, "type"),
    "a long type": ({"type": "f" * 10_000}, "type"),
    "kind true": ({"kind": True}, "kind"),
    "kind that is a list": ({"kind": []}, "kind"),
    "shape -1": ({"shape": [-1]}, "shape"),
    "shape with true": ({"shape": [True], "data": bytes(4)}, "shape"),
    "shape with a float": ({"shape": [2.0, 3]}, "shape"),
    "shape with a string": ({"shape": ["6"]}, "shape"),
    "shape that is a number": ({"shape": 6}, "shape"),
    "shape that is a map": ({"shape": {}}, "shape"),
    "shape that is a binary": ({"shape": b"\x06"}, "shape"),
    "shape of 33 dimensions": ({"shape": [1] * 33, "data": bytes(4)}, "shape"),
    "shape beyond memory": ({"shape": [2**40], "data": b""}, "shape"),
    "shape beyond memory times zero": ({"shape": [2**64 - 1, 0], "data": b""}, "shape"),
    "shape beyond what NumPy addresses": ({"shape": [2**31] * 3 + [0], "data": b""}, "shape"),
    "shape whose size wraps to zero": ({"shape": [2**32 - 1] * 20, "data": b""}, "data"),
    "data one byte short": ({"data": bytes(23)}, "data"),
    "data one byte long": ({"data": bytes(25)}, "data"),
    "no data for a number": ({"shape": [], "data": b""}, "data"),
    "data that is a string": ({"data": "x" * 24}, "data"),
    "data that is a list": ({"data": [0.0] * 6}, "data"),
    "data that is nil": ({"data": None}, "data"),
    "a scalar with a shape": ({"nd": False, "data": bytes(4)}, "shape"),
    "a scalar with two items": ({"nd": False, "shape": ..., "data": bytes(8)}, "data"),
}


@pytest.mark.parametrize(("body", "field"), BODIES.values(), ids=BODIES.keys())
def test_a_hostile_body_is_refused_by_its_field_in_little_memory_and_time(body, field):
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(WireError) as caught:
            unpackb(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.field == field
    assert peak < 2**20
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(("changes", "key"), ARRAYS.values(), ids=ARRAYS.keys())
def test_a_hostile_array_is_refused_by_its_field(changes, key):
    with pytest.raises(WireError) as caught:
        unpackb(message(**changes))
    assert caught.value.field == f"x.{key}"
    assert len(str(caught.value)) < 200


def test_the_changed_arrays_were_good_before_the_change():
    assert unpackb(message())["x"].shape == (2, 3)


class _Trap:
    """Its pickle, once loaded, raises the error that tells."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


def test_a_pickle_is_never_loaded():
    trap = pickle.dumps(_Trap())
    with pytest.raises(SystemExit):
        pickle.loads(trap)
    for kind in (b"O", b"V", b"", "O"):
        with pytest.raises(WireError):
            unpackb(message(kind=kind, type="|O", shape=[1], data=trap))


def test_no_name_outside_the_table_reaches_numpy():
    names = {prefix + code for prefix in "<>=|" for code in np.typecodes["All"]}
    names |= {
        prefix + kind + str(size)
        for prefix in "<>=|"
        for kind in "biufcmMOSUV"
        for size in range(17)
    }
    for name in sorted(names - DTYPES.keys()):
        with pytest.raises(WireError) as caught:
            unpackb(message(type=name, shape=[0], data=b""))
        assert caught.value.field == "x.type"


def test_every_truncation_is_refused():
    body = packb(REQUEST)
    for length in range(len(body)):
        with pytest.raises(WireError):
            unpackb(body[:length])


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_wire_errors(body):
    with contextlib.suppress(WireError):
        unpackb(body)


@given(st.data())
def test_a_damaged_message_raises_nothing_but_wire_errors(data):
    body = bytearray(packb(REQUEST))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(WireError):
        unpackb(body)


ENTRIES = PLAIN | st.sampled_from([[], [0], [2, 3], [-1], [2**40], *DTYPES, "|O", b"", b"O"])


@given(
    st.fixed_dictionaries(
        {b"nd": st.sampled_from([True, True, False, 1, None])},
        optional=dict.fromkeys((b"type", b"kind", b"shape", b"data", b"more"), ENTRIES),
    )
)
def test_an_array_map_of_anything_raises_nothing_but_wire_errors(entries):
    with contextlib.suppress(WireError):
        assert isinstance(unpackb(msgpack.packb(entries)), np.ndarray)


@given(trees(PLAIN | arrays()))
def test_whatever_decodes_encodes_to_a_message_that_decodes(tree):
    body = packb(tree)
    assert packb(unpackb(body)) == body
