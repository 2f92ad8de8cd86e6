"""Messages to start from: a good one of each operation, and those that broke other decoders."""

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import numpy as np

from segops_client import wire
from segops_service.operations import OPERATIONS, Operation, fill

ROWS, SEGMENTS = 4, 3

Fields = dict[str, Any]


def array_map(**changes: Any) -> Mapping[bytes, Any]:
    """Map of a good (4, 3) float32 array with some entries changed."""
    good = {
        b"nd": True,
        b"type": "<f4",
        b"kind": b"",
        b"shape": [ROWS, 3],
        b"data": bytes(4 * ROWS * 3),
    }
    return good | {key.encode(): value for key, value in changes.items()}


def requests() -> Iterator[tuple[str, Fields]]:
    """Good requests, with every field, in each form and dtype of each operation."""
    for op, operation in OPERATIONS.items():
        for form in range(len(operation.forms)):
            for dtype in ("<f4", "<f8"):
                yield op, _request(operation, form, dtype)


def _request(operation: Operation, form: int, dtype: str) -> Fields:
    layouts = operation.forms[form]

    def array(layout: tuple[str | int, ...]) -> np.ndarray:
        shape = fill(layout, ROWS, SEGMENTS)
        return np.linspace(-1, 1, int(np.prod(shape)), dtype=dtype).reshape(shape)

    operands = {name: array(layout) for name, layout in layouts.operands.items()}
    return {
        **operands,
        "idx": np.array([0, 0, 1, 2]),
        "num_segments": SEGMENTS,
        "indices_are_sorted": True,
        "out_of_range": "drop",
        "want": ["value", "vjp", "jvp", "hvp"],
        "cotangent": array(layouts.value),
        "tangents": operands,
    }


def to_json(fields: Fields) -> bytes:
    """Write the same request in JSON."""
    first = next(iter(fields.values()))
    return json.dumps({**fields, "dtype": first.dtype.name}, default=np.ndarray.tolist).encode()


_TRAP = pickle.dumps(np.array([None]))

_HOSTILE_ARRAYS: tuple[Mapping[bytes, Any], ...] = (
    array_map(kind=b"O", type="|O", shape=[1], data=_TRAP),
    array_map(type="|O", shape=[1], data=b"A" * 8),
    array_map(kind=b"V", type=[["a", "|O"], ["b", "<f4"]], shape=[1], data=b"A" * 12),
    array_map(type="f4,O", shape=[1], data=b"A" * 12),
    array_map(type="|V0", shape=[2**40], data=b""),
    array_map(type="<c8"),
    array_map(type="<f2"),
    array_map(type=">f4"),
    array_map(type="=f4"),
    array_map(shape=[-1]),
    array_map(shape=[True]),
    array_map(shape=[2**40], data=b""),
    array_map(shape=[2**64 - 1, 0], data=b""),
    array_map(shape=[2**32 - 1] * 20, data=b""),
    array_map(shape=[2**31] * 3 + [0], data=b""),
    array_map(shape=[1] * 33),
    array_map(nd=False),
    array_map(nd=1),
)
HOSTILE_VALUES: tuple[Any, ...] = (
    *_HOSTILE_ARRAYS,
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1),
    {1: 2},
    {b"x": 1},
    [0] * 20,
    -(2**63),
    2**64 - 1,
    float("nan"),
    float("inf"),
    True,
    None,
    "5",
)

HOSTILE_MSGPACK: tuple[bytes, ...] = (
    b"",
    b"\xc1",
    b"\x9f\xfdt\xf7\xddt\xff\xfd\xbd",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20,
    b"\xdd\x00\x04\x00\x00" + b"\x91" * 2**18,
    b"\x91" * 100_000,
    b"\x81\xa1a" * 30_000,
    b"\x82\xa1a\x01\xa1a\x02",
    b"\x81\xa1a\xa3\xed\xa0\x80",
    *(msgpack.packb({"x": value}) for value in HOSTILE_VALUES),
    *(msgpack.packb({"x": array_map(), "idx": value}) for value in HOSTILE_VALUES),
)

HOSTILE_JSON: tuple[bytes, ...] = (
    b"",
    b"null",
    b"\xef\xbb\xbf{}",
    b"{" * 20_000,
    b'{"x":' * 30_000,
    b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    b'{"x":[' + b"[]," * 60_000 + b"[]]}",
    b'{"x":[' + b"0," * 100_000 + b"0]}",
    b'{"want":[' + b"{}," * 60_000 + b"{}]}",
    b'{"\xff":1}',
    b'{"tangents":{"\xff":[1]}}',
    b'{"x":"\\ud800"}',
    b'{"x":[NaN,Infinity]}',
    b'{"x":[1e400]}',
    b'{"x":[1e39],"dtype":"float32"}',
    b'{"x":[null,true,"1"]}',
    b'{"x":[[1],[2,3]]}',
    b'{"x":[[[[1]]]]}',
    b'{"x":[1],"idx":[1180591620717411303424],"num_segments":1}',
    b'{"x":[1],"idx":[' + b"9" * 4000 + b'],"num_segments":1}',
    b'{"x":[1],"idx":[' + b"9" * 5000 + b'],"num_segments":1}',
    b'{"x":[1],"idx":[0.0],"num_segments":1.0}',
    b'{"x":[1],"idx":[0],"num_segments":1,"num_segments":2}',
    b'{"x":[],"idx":[],"num_segments":0,"cotangent":null,"tangents":null}',
)


def msgpack_seeds() -> list[bytes]:
    """Bodies in msgpack."""
    return [*(wire.packb(fields) for _, fields in requests()), *HOSTILE_MSGPACK]


def json_seeds() -> list[bytes]:
    """Bodies in JSON."""
    return [*(to_json(fields) for _, fields in requests()), *HOSTILE_JSON]
