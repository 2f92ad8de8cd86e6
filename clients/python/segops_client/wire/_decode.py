"""From a message to values, in one pass that trusts nothing of it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

from segops_client.wire._arrays import described_array, packed_array
from segops_client.wire._format import DEFAULT_LIMITS, MAX_KEY, Array, Limits, WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

_CUT_OFF: Final = "is cut off by the end of the message"
_ARRAY_ENTRIES: Final = 5


def unpackb(body: Buffer, *, limits: Limits = DEFAULT_LIMITS) -> Any:
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
    return Reader(view, limits).message()


class Reader:
    """One pass over a message. A binary is a view of it until its place in the message is known.

    Faults are raised as seen from the value at hand; each container adds its part of the path.
    """

    __slots__ = ("_at", "_end", "_holds_views", "_items", "_limits", "_view")

    def __init__(self, view: memoryview, limits: Limits) -> None:
        self._view = view
        self._at = 0
        self._end = len(view)
        self._limits = limits
        self._items = 0
        self._holds_views = False  # whether any container may hold a view that it must own

    def message(self) -> Any:
        """Return the value that the message is."""
        decoded = _owned(self._value(0))
        if self._at < self._end:
            raise WireError("", f"goes on for {self._end - self._at} bytes after its end")
        return decoded

    def _value(self, depth: int) -> Any:
        read, operand = self._lead()
        return operand if read is None else read(self, operand, depth)

    def _lead(self) -> tuple[_Read | None, Any]:
        at = self._at
        if at == self._end:
            raise WireError("", _CUT_OFF)
        self._at = at + 1
        return _LEADS[self._view[at]]

    def _take(self, size: int) -> memoryview:
        start = self._at
        stop = start + size
        if stop > self._end:
            raise WireError("", _CUT_OFF)
        self._at = stop
        return self._view[start:stop]

    def _unused(self, lead: int, _: int) -> NoReturn:
        raise WireError("", f"has type byte 0x{lead:02x}, which the format does not use")

    def _sized(self, what: tuple[_Read, int], depth: int) -> Any:
        read, size = self._size(*what)
        return read(self, size, depth)

    def _size(self, read: _Read, width: int) -> tuple[_Read, int]:
        """Take the size, in so many bytes, of what `read` is to read."""
        return read, int.from_bytes(self._take(width), "big")

    def _number(self, layout: struct.Struct, _: int) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _binary(self, size: int, _: int) -> memoryview:
        self._holds_views = True
        return self._take(size)

    def _text(self, size: int, _: int) -> str:
        if size > self._limits.max_text_bytes:
            raise WireError("", f"has {size} bytes, the limit is {self._limits.max_text_bytes}")
        try:
            return self._take(size).tobytes().decode()
        except UnicodeDecodeError:
            raise WireError("", "is not valid UTF-8") from None

    def _list(self, size: int, depth: int) -> list[Any]:
        self._enter(size, depth)
        elements: list[Any] = []
        try:
            for _ in range(size):
                elements.append(_owned(self._value(depth + 1)))  # noqa: PERF401 - length is needed
        except WireError as error:
            raise error.inside(f"[{len(elements)}]") from None
        return elements

    def _map(self, size: int, depth: int) -> Any:
        if size == _ARRAY_ENTRIES and (array := self._packed_array(depth)) is not None:
            return array
        self._enter(2 * size, depth)
        entries: dict[str, Any] = {}
        binary_keys = False
        for _ in range(size):
            key, is_binary = self._key()
            binary_keys |= is_binary
            try:
                if key in entries:
                    raise WireError("", "appears twice in one map")
                entries[key] = self._value(depth + 1)
            except WireError as error:
                raise error.inside(key) from None
        if "nd" in entries:
            return described_array(entries, self._limits)
        if binary_keys:
            raise WireError("", "map keys must be strings")
        if self._holds_views:
            return {key: _owned(element) for key, element in entries.items()}
        return entries

    def _key(self) -> tuple[str, bool]:
        """Return the next map key as text, and whether it was sent as a binary."""
        read, operand = self._lead()
        if read is Reader._text:
            return self._text(operand, 0), False
        return self._sized_key(read, operand)

    def _sized_key(self, read: _Read | None, operand: Any) -> tuple[str, bool]:
        if read is Reader._unused:
            read(self, operand, 0)
        if read is Reader._sized:
            read, operand = self._size(*operand)
        if read not in (Reader._text, Reader._binary):
            raise WireError("", "map keys must be strings")
        if operand > MAX_KEY:
            raise WireError("", f"map keys have at most {MAX_KEY} bytes, got {operand}")
        return self._text(operand, 0), read is Reader._binary

    def _packed_array(self, depth: int) -> Array | None:
        """Read an array map at once where it is as `packb` writes it, and nothing where it is not.

        This is a shortcut: read entry by entry, the map gives the same array at the same charge.
        """
        found = packed_array(self._view, self._at, self._limits)
        if found is None:
            return None
        array, end = found
        items = self._items + 2 * _ARRAY_ENTRIES + array.ndim
        if items > self._limits.max_items or depth + 1 >= self._limits.max_depth:
            return None
        self._at, self._items = end, items
        return array

    def _enter(self, items: int, depth: int) -> None:
        """Charge a container to the limits before any of it is read."""
        limits = self._limits
        self._items += items
        if depth >= limits.max_depth:
            raise WireError("", f"is nested deeper than {limits.max_depth} levels")
        if items > self._end - self._at:
            raise WireError("", _CUT_OFF)
        if self._items > limits.max_items:
            raise WireError(
                "",
                f"takes the message over {limits.max_items} items; "
                "numbers in bulk belong in arrays",
            )


def _owned(element: Any) -> Any:
    return bytes(element) if isinstance(element, memoryview) else element


_Read: TypeAlias = Callable[[Reader, Any, int], Any]


def _lead_bytes() -> tuple[tuple[_Read | None, Any], ...]:
    """Return what each first byte of a value means: the method that reads on, and its operand.

    Without a method the operand is the value. Extension types and the byte that msgpack never uses
    are unused.
    """
    leads: list[tuple[_Read | None, Any]] = [(Reader._unused, lead) for lead in range(256)]
    leads[0x00:0x80] = [(None, number) for number in range(128)]
    leads[0x80:0x90] = [(Reader._map, size) for size in range(16)]
    leads[0x90:0xA0] = [(Reader._list, size) for size in range(16)]
    leads[0xA0:0xC0] = [(Reader._text, size) for size in range(32)]
    leads[0xC0] = (None, None)
    leads[0xC2:0xC4] = [(None, False), (None, True)]
    leads[0xC4:0xC7] = [(Reader._sized, (Reader._binary, width)) for width in (1, 2, 4)]
    leads[0xCA:0xD4] = [(Reader._number, struct.Struct(">" + code)) for code in "fdBHIQbhiq"]
    leads[0xD9:0xDC] = [(Reader._sized, (Reader._text, width)) for width in (1, 2, 4)]
    leads[0xDC:0xDE] = [(Reader._sized, (Reader._list, width)) for width in (2, 4)]
    leads[0xDE:0xE0] = [(Reader._sized, (Reader._map, width)) for width in (2, 4)]
    leads[0xE0:0x100] = [(None, number) for number in range(-32, 0)]
    return tuple(leads)


_LEADS: Final = _lead_bytes()
