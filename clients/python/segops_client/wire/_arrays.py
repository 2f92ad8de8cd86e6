"""From an array map to the array: by its entries, or at once where it is as `packb` writes it."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import numpy as np

from segops_client.wire._format import (
    ARRAY_HEADS,
    DATA_KEY,
    DTYPES,
    Array,
    Limits,
    WireError,
    bin_header,
)

_MAX_NDIM: Final = 32

# Without the first byte, which the reader has taken; and only of data that needs no byte swap.
_HEADS: Final = {
    ARRAY_HEADS[name][1:]: dtype
    for name, dtype in DTYPES.items()
    if name.startswith("<") and dtype.isnative
}
_HEAD_BYTES: Final = len(next(iter(_HEADS)))
_LONGEST_TEXT: Final = len("shape")
_UNSIGNED: Final = {0xCC + power: struct.Struct(">" + "BHIQ"[power]) for power in range(4)}


def packed_array(view: memoryview, at: int, limits: Limits) -> tuple[Array, int] | None:
    """Return the array whose map goes on at `at`, if `packb` could have written it, and its end.

    None where it is laid out in another way, has no elements, or has a fault of any kind.
    """
    dtype = _HEADS.get(view[at : at + _HEAD_BYTES].tobytes())
    if dtype is None:
        return None
    try:
        shape, at = _packed_shape(view, at + _HEAD_BYTES)
        size = math.prod(shape) * dtype.itemsize
        before = DATA_KEY + bin_header(size)
    except (IndexError, struct.error):
        return None
    start = at + len(before)
    fits = 0 < size <= limits.max_array_bytes and limits.max_text_bytes >= _LONGEST_TEXT
    if not fits or view[at:start] != before or start + size > len(view):
        return None
    return np.ndarray(shape, dtype, view, start), start + size


def _packed_shape(view: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """Return the shape at `at` and its end, or raise what indexing or struct raises."""
    shape: list[int] = []
    lead, at = view[at], at + 1
    if not 0x90 <= lead <= 0x9F:
        raise IndexError
    for _ in range(lead - 0x90):
        lead, at = view[at], at + 1
        if lead < 0x80:
            shape.append(lead)
        elif lead in _UNSIGNED:
            shape += _UNSIGNED[lead].unpack_from(view, at)
            at += _UNSIGNED[lead].size
        else:
            raise IndexError
    return tuple(shape), at


def described_array(entries: dict[str, Any], limits: Limits) -> Array:
    """Build the array that the entries of an array map describe."""
    nd = entries["nd"]
    if nd is not True and nd is not False:
        raise WireError("nd", "must be true for an array, false for a scalar")
    _check_keys(entries, {"type", "shape", "data"} if nd else {"type", "data"})
    dtype = _wire_dtype(entries["type"])
    shape = _wire_shape(entries["shape"], limits) if nd else ()
    data = _wire_data(entries["data"], math.prod(shape) * dtype.itemsize, limits)
    try:
        array: Array = np.ndarray(shape, dtype, buffer=data)
    except ValueError:  # an empty array whose other dimensions NumPy cannot address
        raise WireError("shape", f"has dimensions that are too large: {list(shape)}") from None
    return array if dtype.isnative else _native(array)


def _check_keys(entries: dict[str, Any], required: set[str]) -> None:
    if entries.get("kind", "") not in ("", b""):
        raise WireError("kind", "must be empty; only plain numbers are accepted")
    for key in sorted(required - entries.keys()):
        raise WireError(key, "is missing from an array map")
    for key in sorted(entries.keys() - required - {"nd", "kind"}):
        raise WireError(key, "is not a key of an array map")


def _wire_dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in DTYPES:
        shown = f"{name[:20]!r}" if isinstance(name, str) else f"a {type(name).__name__}"
        raise WireError("type", f"must be a number type such as '<f4', got {shown}")
    return DTYPES[name]


def _wire_shape(shape: Any, limits: Limits) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > _MAX_NDIM:
        raise WireError("shape", f"must be a list of at most {_MAX_NDIM} integers")
    for length in shape:
        if type(length) is not int or not 0 <= length <= limits.max_array_bytes:
            raise WireError("shape", f"must hold integers from 0 to {limits.max_array_bytes}")
    return tuple(shape)


def _wire_data(data: Any, expected: int, limits: Limits) -> memoryview:
    if not isinstance(data, memoryview):
        raise WireError("data", "must be binary")
    if expected > limits.max_array_bytes:
        raise WireError("data", f"needs more than the limit of {limits.max_array_bytes} bytes")
    if len(data) != expected:
        raise WireError("data", f"has {len(data)} bytes, its type and shape need {expected}")
    return data


def _native(array: Array) -> Array:
    swapped = array.astype(array.dtype.newbyteorder("="))
    swapped.flags.writeable = False
    return swapped
