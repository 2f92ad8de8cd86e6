"""From values to a message, with no copy of an array that is laid out as the message has it."""

from __future__ import annotations

from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import numpy as np

from segops_client.wire._format import (
    ARRAY_HEADS,
    DATA_KEY,
    DEFAULT_LIMITS,
    MAX_BIN,
    MAX_KEY,
    SCALAR_HEADS,
    Array,
    WireError,
    bin_header,
)

_LARGE: Final = 2**16
"""Bytes from which data is a part of its own; below, copying it costs less than sending it."""


def packb(obj: Any) -> bytes:
    """Encode a value; arrays keep their shape and type and are written little-endian, in C order.

    Parameters
    ----------
    obj
        Maps with string keys, lists, tuples, strings, numbers, booleans, None, binaries, and NumPy
        arrays and scalars with a type in `DTYPES`, nested at most 16 deep.

    Raises
    ------
    WireError
        If a value has no place in the format, or its data exceeds the 2**32 - 1 bytes of a msgpack
        binary. Array data is copied only after every value has been accepted.
    """
    return b"".join(pack_parts(obj))


def pack_parts(obj: Any) -> list[bytes | memoryview]:
    """Encode a value as the consecutive parts of a message, to be sent without being joined.

    Data of 64 KiB and more is a part of its own: a flat view of its bytes, which for a C-contiguous
    little-endian array are the array's own. Neither the arrays nor the binaries of `obj` may be
    changed until the parts have been sent. All that lies between large data is joined.

    Parameters
    ----------
    obj
        What `packb` encodes; the parts joined are its message.

    Raises
    ------
    WireError
        Where `packb` raises it.
    """
    writer = _Writer()
    writer.value(obj, 0)
    parts, begin = writer.parts, 0
    divided: list[bytes | memoryview] = []
    for large in writer.large:
        divided += _joined(parts[begin:large]), _bytes_of(parts[large])
        begin = large + 1
    if begin < len(parts):
        divided.append(_joined(parts[begin:]))
    return divided


class _Writer:
    """Collects the pieces of a message, so that no data is copied before all is accepted.

    ``large`` has the positions of those that become parts of their own.
    """

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview | Array] = []
        self.large: list[int] = []
        self._pack = msgpack.Packer()

    def value(self, obj: Any, depth: int) -> None:
        if isinstance(obj, np.ndarray):
            self.parts += _lookup(ARRAY_HEADS, obj), self._pack.pack(obj.shape)
            self._data(obj)
        elif obj is None or isinstance(obj, (bool, int, float, str)):
            self._plain(obj)
        elif isinstance(obj, np.generic):
            self.parts.append(_lookup(SCALAR_HEADS, obj))
            self._data(np.asarray(obj))
        elif isinstance(obj, (bytes, bytearray, memoryview)):
            self._binary(memoryview(obj))
        elif isinstance(obj, (dict, list, tuple)):
            self._container(obj, depth)
        else:
            raise WireError("", f"a {type(obj).__name__} cannot be sent")

    def _plain(self, obj: Any) -> None:
        try:
            self.parts.append(self._pack.pack(obj))
        except (OverflowError, ValueError) as error:
            raise WireError("", str(error)) from None

    def _data(self, array: Array) -> None:
        self.parts.append(DATA_KEY)
        self._binary(array)

    def _binary(self, data: memoryview | Array) -> None:
        size = data.nbytes
        if size > MAX_BIN:
            raise WireError("", f"has {size} bytes of data, the format holds {MAX_BIN}")
        self.parts += bin_header(size), data
        if size >= _LARGE:
            self.large.append(len(self.parts) - 1)

    def _container(self, obj: dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> None:
        if depth >= DEFAULT_LIMITS.max_depth:
            raise WireError("", f"is nested deeper than {DEFAULT_LIMITS.max_depth} levels")
        if isinstance(obj, dict):
            self._map(obj, depth + 1)
        else:
            self._list(obj, depth + 1)

    def _list(self, elements: list[Any] | tuple[Any, ...], depth: int) -> None:
        self.parts.append(self._pack.pack_array_header(len(elements)))
        for position, element in enumerate(elements):
            try:
                self.value(element, depth)
            except WireError as error:
                raise error.inside(f"[{position}]") from None

    def _map(self, entries: dict[Any, Any], depth: int) -> None:
        self.parts.append(self._pack.pack_map_header(len(entries)))
        for key, element in entries.items():
            if not isinstance(key, str):
                raise WireError("", f"map keys must be strings, got a {type(key).__name__}")
            if len(key.encode(errors="replace")) > MAX_KEY:
                raise WireError("", f"map keys have at most {MAX_KEY} bytes")
            self._plain(key)
            try:
                self.value(element, depth)
            except WireError as error:
                raise error.inside(key) from None


def _lookup(heads: dict[str, bytes], obj: Array | np.generic) -> bytes:
    head = heads.get(obj.dtype.str)
    if head is None:
        raise WireError("", f"arrays of type {obj.dtype} cannot be sent")
    return head


def _joined(parts: list[bytes | memoryview | Array]) -> bytes:
    return b"".join(map(_copied, parts))


def _copied(part: bytes | memoryview | Array) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, np.ndarray):
        part = np.asarray(part, part.dtype.newbyteorder("<"))
    return part.tobytes()


def _bytes_of(part: bytes | memoryview | Array) -> memoryview:
    """Return the bytes of large data in one dimension, copied only where they are not in order."""
    if isinstance(part, np.ndarray):
        part = np.asarray(part, part.dtype.newbyteorder("<"), order="C").data
    elif isinstance(part, memoryview) and not part.c_contiguous:
        part = part.tobytes()
    return np.frombuffer(part, np.uint8).data
