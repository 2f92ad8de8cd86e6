"""What both directions know of the format: its names, its bounds and the bytes around an array."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

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

MAX_BIN: Final = 2**32 - 1
MAX_KEY: Final = 255
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
    max_array_bytes: int = MAX_BIN
    max_text_bytes: int = 2**16
    max_depth: int = 16
    max_items: int = 2**16

    def __post_init__(self) -> None:
        if not 1 <= self.max_depth <= _DEEPEST:
            raise ValueError(f"max_depth must lie in 1..{_DEEPEST}, got {self.max_depth}")


DEFAULT_LIMITS: Final = Limits()


def _head(lead: int, *entries: Any) -> bytes:
    return bytes([lead]) + b"".join(map(msgpack.packb, entries))


ARRAY_HEADS: Final = {
    name: _head(0x85, b"nd", True, b"type", dtype.newbyteorder("<").str, b"kind", b"", b"shape")
    for name, dtype in DTYPES.items()
}
"""An array map by wire string of the array, up to its shape."""

SCALAR_HEADS: Final = {
    name: _head(0x83, b"nd", False, b"type", dtype.newbyteorder("<").str)
    for name, dtype in DTYPES.items()
}
"""A scalar's map by wire string of the scalar, up to its data."""

DATA_KEY: Final[bytes] = msgpack.packb(b"data")


def bin_header(size: int) -> bytes:
    """Return what comes before the bytes of a binary."""
    if size < 2**8:
        return struct.pack(">BB", 0xC4, size)
    if size < 2**16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)
