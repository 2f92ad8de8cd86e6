"""The array encoding that both ends of the service speak: one strict, bounded msgpack map.

A message is made of maps with string keys, lists, strings, numbers, booleans, nil, binaries and
arrays. An array is a map in the layout of ``msgpack_numpy``, so an unpatched ``msgpack_numpy``
peer interoperates in both directions::

    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [4, 3], b"data": <C order, little-endian>}

`packb` writes exactly that layout for an array of any memory order. `unpackb` accepts the keys as
bytes or strings and trusts nothing else: the element type is looked up in `DTYPES`, never built
from what was sent; no pickle is ever loaded; the sizes that a message claims are checked against
`Limits`, and against the bytes that are there, before anything is allocated. Every fault is a
`WireError` that names the field. A NumPy scalar (``nd`` false, no shape) decodes to an array of
shape ``()``.

Decoded arrays are read-only views of the body that was passed in, which they keep alive. Their
data starts wherever the message put it, so a view may be unaligned (``array.flags.aligned`` is
False). NumPy computes with such views correctly; ``numpy.require(array, requirements="A")`` makes
an aligned copy where a consumer of the raw pointer needs one. Big-endian data is byte-swapped into
a fresh little-endian array.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

__all__ = ["DTYPES", "MEDIA_TYPE", "MEDIA_TYPES", "Limits", "WireError", "packb", "unpackb"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = npt.NDArray[Any]

MEDIA_TYPE: Final = "application/vnd.msgpack"
MEDIA_TYPES: Final = (MEDIA_TYPE, "application/msgpack", "application/x-msgpack")

_CODES: Final = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_LITTLE: Final = {code: np.dtype("<" + code) for code in _CODES}

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {"<" + code: dtype for code, dtype in _LITTLE.items()}
    | {"=" + code: dtype for code, dtype in _LITTLE.items()}
    | {"|" + code: dtype for code, dtype in _LITTLE.items() if dtype.itemsize == 1}
    | {">" + code: dtype.newbyteorder(">") for code, dtype in _LITTLE.items()}
)
"""The element types of the format by wire string; ``=`` is little-endian on every machine."""

_MAX_BIN: Final = 2**32 - 1
_MAX_NDIM: Final = 32
_MAX_KEY: Final = 255
_DEEPEST: Final = 64


class WireError(ValueError):
    """A message, or a value to be sent, that is not part of the format.

    Attributes
    ----------
    field
        Dotted path of the value at fault, such as ``tangents.x.shape``; empty for the message.
    reason
        What is wrong with it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field or 'message'}: {self.reason}"

    def inside(self, outer: str) -> WireError:
        """Return the same fault as seen from the container that holds its field as `outer`."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return WireError(outer + dot + self.field, self.reason)


@dataclass(frozen=True)
class Limits:
    """What `unpackb` accepts at most.

    Attributes
    ----------
    max_bytes
        Length of the whole message.
    max_array_bytes
        Data of one array, and the length of any one of its dimensions.
    max_text_bytes
        One string, encoded; a map key has at most 255 bytes.
    max_depth
        Nesting of maps and lists; at most 64.
    max_items
        List elements, map keys and map values in the whole message; array data does not count.
    """

    max_bytes: int = 2**30
    max_array_bytes: int = _MAX_BIN
    max_text_bytes: int = 2**16
    max_depth: int = 16
    max_items: int = 2**16

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= _DEEPEST:
            raise ValueError(f"max_depth must lie in 1..{_DEEPEST}, got {self.max_depth}")


_DEFAULT_LIMITS: Final = Limits()


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
    writer = _Writer()
    writer.value(obj, 0)
    return b"".join(map(_contiguous, writer.parts))


def unpackb(body: Buffer, *, limits: Limits = _DEFAULT_LIMITS) -> Any:
    """Decode one message, refusing everything that is not part of the format.

    Parameters
    ----------
    body
        The whole message. Decoded arrays are read-only views of it, so it must not be changed
        while they live.
    limits
        Bounds on what is accepted.

    Raises
    ------
    WireError
        For every fault of the message; no other exception is raised for any body.
    """
    view = memoryview(body).toreadonly().cast("B")
    if len(view) > limits.max_bytes:
        raise WireError("", f"has {len(view)} bytes, the limit is {limits.max_bytes}")
    reader = _Reader(view, limits)
    decoded = _owned(reader.value(0))
    if reader.left:
        raise WireError("", f"goes on for {reader.left} bytes after its end")
    return decoded


_DATA_KEY: Final[bytes] = msgpack.packb(b"data")


def _head(lead: int, *entries: Any) -> bytes:
    return bytes([lead]) + b"".join(map(msgpack.packb, entries))


_ARRAY_HEADS: Final = {
    name: _head(0x85, b"nd", True, b"type", dtype.newbyteorder("<").str, b"kind", b"", b"shape")
    for name, dtype in DTYPES.items()
}
_SCALAR_HEADS: Final = {
    name: _head(0x83, b"nd", False, b"type", dtype.newbyteorder("<").str)
    for name, dtype in DTYPES.items()
}


class _Writer:
    """Collects the parts of a message, so that array data is copied once, into the result."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview | Array] = []
        self._pack = msgpack.Packer()

    def value(self, obj: Any, depth: int) -> None:
        if obj is None or isinstance(obj, (bool, int, float, str)):
            self._plain(obj)
        elif isinstance(obj, np.ndarray):
            self.parts += _lookup(_ARRAY_HEADS, obj), self._pack.pack(obj.shape)
            self._data(obj)
        elif isinstance(obj, np.generic):
            self.parts.append(_lookup(_SCALAR_HEADS, obj))
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
        self.parts.append(_DATA_KEY)
        self._binary(array)

    def _binary(self, data: memoryview | Array) -> None:
        if data.nbytes > _MAX_BIN:
            raise WireError("", f"has {data.nbytes} bytes of data, the format holds {_MAX_BIN}")
        self.parts += _bin_header(data.nbytes), data

    def _container(self, obj: dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> None:
        if depth >= _DEFAULT_LIMITS.max_depth:
            raise WireError("", f"is nested deeper than {_DEFAULT_LIMITS.max_depth} levels")
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
            if len(key.encode(errors="replace")) > _MAX_KEY:
                raise WireError("", f"map keys have at most {_MAX_KEY} bytes")
            self._plain(key)
            try:
                self.value(element, depth)
            except WireError as error:
                raise error.inside(key) from None


def _lookup(heads: dict[str, bytes], obj: Array | np.generic) -> bytes:
    if obj.dtype.str not in heads:
        raise WireError("", f"arrays of type {obj.dtype} cannot be sent")
    return heads[obj.dtype.str]


def _bin_header(size: int) -> bytes:
    if size < 2**8:
        return struct.pack(">BB", 0xC4, size)
    if size < 2**16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)


def _contiguous(part: bytes | memoryview | Array) -> bytes | memoryview:
    """Return a part as it goes on the wire; an array is copied only where it is not that yet."""
    if isinstance(part, np.ndarray):
        return np.asarray(part, part.dtype.newbyteorder("<"), order="C").data
    return part if isinstance(part, bytes) or part.c_contiguous else part.tobytes()


_VALUE, _NUMBER, _BIN, _TEXT, _LIST, _MAP, _UNUSED = range(7)


def _lead_bytes() -> tuple[tuple[int, Any, int], ...]:
    """Return what each first byte of a value means: kind, value or size, width of a size to read.

    Extension types and the byte that msgpack never uses stay `_UNUSED`.
    """
    leads: list[tuple[int, Any, int]] = [(_UNUSED, None, 0)] * 256
    leads[0x00:0x80] = [(_VALUE, number, 0) for number in range(128)]
    leads[0x80:0x90] = [(_MAP, size, 0) for size in range(16)]
    leads[0x90:0xA0] = [(_LIST, size, 0) for size in range(16)]
    leads[0xA0:0xC0] = [(_TEXT, size, 0) for size in range(32)]
    leads[0xC0] = (_VALUE, None, 0)
    leads[0xC2:0xC4] = [(_VALUE, False, 0), (_VALUE, True, 0)]
    leads[0xC4:0xC7] = [(_BIN, None, width) for width in (1, 2, 4)]
    leads[0xCA:0xD4] = [(_NUMBER, struct.Struct(">" + code), 0) for code in "fdBHIQbhiq"]
    leads[0xD9:0xDC] = [(_TEXT, None, width) for width in (1, 2, 4)]
    leads[0xDC:0xDE] = [(_LIST, None, width) for width in (2, 4)]
    leads[0xDE:0xE0] = [(_MAP, None, width) for width in (2, 4)]
    leads[0xE0:0x100] = [(_VALUE, number, 0) for number in range(-32, 0)]
    return tuple(leads)


_LEADS: Final = _lead_bytes()
_CUT_OFF: Final = "is cut off by the end of the message"


class _Reader:
    """One pass over a message. A binary is a view of it until its place in the message is known.

    Faults are raised as seen from the value at hand; each container adds its part of the path.
    """

    def __init__(self, view: memoryview, limits: Limits) -> None:
        self.left = len(view)
        self._view = view
        self._limits = limits
        self._items = 0

    def value(self, depth: int) -> Any:
        kind, payload = self._lead()
        if kind == _VALUE:
            return payload
        if kind == _NUMBER:
            return payload.unpack(self._take(payload.size))[0]
        if kind == _BIN:
            return self._take(payload)
        if kind == _TEXT:
            return self._text(payload)
        self._enter(payload if kind == _LIST else 2 * payload, depth)
        return self._list(payload, depth + 1) if kind == _LIST else self._map(payload, depth + 1)

    def _lead(self) -> tuple[int, Any]:
        if not self.left:
            raise WireError("", _CUT_OFF)
        lead = self._view[-self.left]
        self.left -= 1
        kind, payload, width = _LEADS[lead]
        if kind == _UNUSED:
            raise WireError("", f"has type byte 0x{lead:02x}, which the format does not use")
        return kind, int.from_bytes(self._take(width), "big") if width else payload

    def _take(self, size: int) -> memoryview:
        if size > self.left:
            raise WireError("", _CUT_OFF)
        start = len(self._view) - self.left
        self.left -= size
        return self._view[start : start + size]

    def _text(self, size: int) -> str:
        if size > self._limits.max_text_bytes:
            raise WireError("", f"has {size} bytes, the limit is {self._limits.max_text_bytes}")
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError:
            raise WireError("", "is not valid UTF-8") from None

    def _enter(self, items: int, depth: int) -> None:
        """Charge a container to the limits before any of it is read."""
        self._items += items
        if depth >= self._limits.max_depth:
            raise WireError("", f"is nested deeper than {self._limits.max_depth} levels")
        if items > self.left:
            raise WireError("", _CUT_OFF)
        if self._items > self._limits.max_items:
            raise WireError(
                "",
                f"takes the message over {self._limits.max_items} items; "
                "numbers in bulk belong in arrays",
            )

    def _list(self, size: int, depth: int) -> list[Any]:
        elements: list[Any] = []
        try:
            for _ in range(size):
                elements.append(_owned(self.value(depth)))  # noqa: PERF401 - its length is needed
        except WireError as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    def _map(self, size: int, depth: int) -> Any:
        entries: dict[str, Any] = {}
        binary_keys = False
        for _ in range(size):
            key, is_binary = self._key()
            binary_keys |= is_binary
            try:
                if key in entries:
                    raise WireError("", "appears twice in one map")
                entries[key] = self.value(depth)
            except WireError as error:
                raise error.inside(key) from None
        if "nd" in entries:
            return _array(entries, self._limits)
        if binary_keys:
            raise WireError("", "map keys must be strings")
        return {key: _owned(element) for key, element in entries.items()}

    def _key(self) -> tuple[str, bool]:
        """Return the next map key as text, and whether it was sent as a binary."""
        kind, payload = self._lead()
        if kind not in (_TEXT, _BIN):
            raise WireError("", "map keys must be strings")
        if payload > _MAX_KEY:
            raise WireError("", f"map keys have at most {_MAX_KEY} bytes, got {payload}")
        return self._text(payload), kind == _BIN


def _owned(element: Any) -> Any:
    return bytes(element) if isinstance(element, memoryview) else element


def _array(entries: dict[str, Any], limits: Limits) -> Array:
    """Build the array that an array map describes."""
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
