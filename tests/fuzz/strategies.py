"""Requests that are almost good: real ones, damaged as a whole or byte by byte."""

import json
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st

from tests.fuzz.seeds import HOSTILE_VALUES, array_map, requests

REQUESTS = list(requests())
KEYS = sorted({key for _, fields in REQUESTS for key in fields} | {"dtype", "nd", "data", "é"})

_NUMBERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**70, 0.5, 1e39, 1e308, -0.0)
_SIZES = (0, 1, 2, 3, 4, 5)


def _numbers(depth: int) -> st.SearchStrategy[Any]:
    inner: st.SearchStrategy[Any] = st.sampled_from(_NUMBERS)
    for _ in range(depth):
        inner = st.lists(inner, max_size=4)
    return inner


@st.composite
def _arrays(draw: st.DrawFn) -> Any:
    """Draw an array that may fit a field, as it is or as a map of its parts."""
    code = draw(st.sampled_from(["f4", "f8", "i4", "i8", "u8", "i1", "b1"]))
    shape = draw(st.lists(st.sampled_from(_SIZES), max_size=3))
    array = np.full(shape, draw(st.sampled_from((0, 1, -1, 3))), "i8").astype(code)
    order = draw(st.sampled_from("<>=|"))
    data = array.astype(array.dtype.newbyteorder(">" if order == ">" else "<")).tobytes()
    return array_map(type=order + code, shape=list(shape), data=data)


_VALUES = (
    st.sampled_from(HOSTILE_VALUES)
    | _arrays()
    | st.integers(-5, 5)
    | st.sampled_from(_NUMBERS[:6])
    | st.text(max_size=5)
    | st.lists(st.sampled_from(["value", "vjp", "jvp", "hvp", "", 1]), max_size=5)
    | st.dictionaries(st.sampled_from(KEYS), _arrays() | st.none(), max_size=3)
)
_JSON_VALUES = (
    st.integers(0, 3).flatmap(_numbers)
    | st.none()
    | st.booleans()
    | st.text(max_size=5)
    | st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3).flatmap(_numbers), max_size=3)
)


@st.composite
def _fields(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw a good request, with some fields left out and some replaced."""
    _, good = draw(st.sampled_from(REQUESTS))
    left_out = draw(st.sets(st.sampled_from(sorted(good)), max_size=4))
    changes = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=2))
    return {name: value for name, value in good.items() if name not in left_out} | changes


@st.composite
def _damaged(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """Draw a message with some bytes lost, changed or put in."""
    message = bytearray(draw(messages))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2, 4)))):
        at = draw(st.integers(0, len(message)))
        message[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(message)


def _msgpack(fields: dict[str, Any]) -> bytes:
    return msgpack.packb(fields, default=_array_map)  # type: ignore[no-any-return]


def _array_map(array: np.ndarray) -> Any:
    return array_map(type=array.dtype.str, shape=array.shape, data=array.tobytes())


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, default=np.ndarray.tolist, ensure_ascii=False).encode()


MSGPACK = _damaged(_fields(_VALUES).map(_msgpack))
"""Bodies in msgpack."""

JSON = _damaged(_fields(_JSON_VALUES).map(_json))
"""Bodies in JSON."""
