"""From the fields of a body to a :class:`Call`, or a fault that names the field."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import segops
from segops_service.calls import Array, Call
from segops_service.errors import ArrayTooLargeError, InvalidArgumentError
from segops_service.operations import OPERATIONS, WANTS, Form, Layout, Operation, count, fill, spell
from segops_service.settings import Settings

Fields = Mapping[str, object]
Want = tuple[str, ...]

OPTIONS = ("indices_are_sorted", "out_of_range", "want", "cotangent", "tangents")


def validate(name: str, fields: Fields, settings: Settings) -> Call:
    """Check every field of a request for operation ``name``.

    Parameters
    ----------
    name
        One of the names in ``OPERATIONS``.
    fields
        The decoded body, with arrays as NumPy arrays.
    settings
        The limits to keep.

    Returns
    -------
    Call
        The computation that the engine can run as it is.

    Raises
    ------
    InvalidArgumentError
        If a field is missing, unknown or wrong.
    segops.SegmentIdError
        If an id is out of range or out of order.
    ArrayTooLargeError
        If a size is over one of the limits.
    """
    operation = OPERATIONS[name]
    _check_names(operation, fields)
    num_segments = _num_segments(fields["num_segments"], settings)
    want = _want(fields["want"]) if "want" in fields else ("value",)
    idx = _idx(fields["idx"], settings)
    form, dtype = _form(operation, fields)
    frame = _Frame(form, dtype, rows=len(idx), segments=num_segments)
    answer_bytes = frame.output_bytes(want, settings.max_output_bytes)
    ids_in_range, ids_ascend = _check_ids(fields, idx, num_segments, settings)
    return Call(
        op=name,
        operands={
            name: frame.array(name, fields[name], form.operands[name]) for name in form.operands
        },
        cotangent=frame.cotangent(fields, want),
        tangents=frame.tangents(fields, want),
        idx=idx,
        num_segments=num_segments,
        want=want,
        ids_in_range=ids_in_range,
        ids_ascend=ids_ascend,
        answer_bytes=answer_bytes,
    )


class _Frame(NamedTuple):
    """The form, the dtype and the sizes that all arrays of one request share."""

    form: Form
    dtype: np.dtype[Any]
    rows: int
    segments: int

    def array(self, field: str, value: object, layout: Layout) -> Array:
        """Check one float array: its type, then its shape."""
        array = _floats(field, value)
        if array.dtype != self.dtype:
            raise InvalidArgumentError(
                f"{field} is {array.dtype} but the first operand is {self.dtype}; "
                "all arrays of a request have one dtype",
                field=field,
            )
        shape = fill(layout, self.rows, self.segments)
        if array.shape != shape:
            raise InvalidArgumentError(
                f"{field} must have shape {spell(layout)} = {shape}, not {array.shape}, "
                f"where N = len(idx) = {self.rows} and S = num_segments = {self.segments}",
                field=field,
            )
        return array

    def cotangent(self, fields: Fields, want: Want) -> Array | None:
        """Check the cotangent of the value; None, for ones, where it has no use."""
        value = fields.get("cotangent")
        if value is None:
            return None
        array = self.array("cotangent", value, self.form.value)
        return array if {"vjp", "hvp"} & {*want} else None

    def tangents(self, fields: Fields, want: Want) -> dict[str, Array]:
        """Check the tangents of the operands; none where they have no use."""
        is_needed = bool({"jvp", "hvp"} & {*want})
        value = fields.get("tangents")
        if value is None and not is_needed:
            return {}
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(
                "jvp and hvp need tangents, a map from operands to arrays", field="tangents"
            )
        arrays = {name: self._tangent(name, array) for name, array in value.items()}
        return {name: arrays[name] for name in self.form.operands if name in arrays and is_needed}

    def _tangent(self, name: str, value: object) -> Array:
        field = f"tangents.{name}"
        if name not in self.form.operands:
            raise InvalidArgumentError(
                f"the operands are {', '.join(self.form.operands)}", field=field
            )
        return self.array(field, value, self.form.operands[name])

    def output_bytes(self, want: Want, max_bytes: int) -> int:
        """Size of the answer, bounded before anything is allocated for it."""
        sizes = (self.rows, self.segments)
        value = count(self.form.value, *sizes)
        operands = sum(count(layout, *sizes) for layout in self.form.operands.values())
        numbers = {"value": value, "jvp": value, "vjp": operands, "hvp": operands}
        total = sum(numbers[name] for name in want) * self.dtype.itemsize
        if total > max_bytes:
            raise ArrayTooLargeError(
                f"the answer would take {total} bytes, the limit here is {max_bytes}",
                field="num_segments"
                if self.form.value[0] == "S"
                else next(iter(self.form.operands)),
            )
        return total


def _check_names(operation: Operation, fields: Fields) -> None:
    required = operation.required
    for name in fields:
        if name not in required and name not in OPTIONS:
            known = ", ".join((*required, *OPTIONS))
            raise InvalidArgumentError(
                f"there is no field {name!r}; known are {known} and, in JSON, dtype", field=name
            )
    for name in required:
        if name not in fields:
            raise InvalidArgumentError(f"{name} is missing", field=name)


def _num_segments(value: object, settings: Settings) -> int:
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
        value = value.item()  # a NumPy integer, as msgpack-numpy sends it
    # type() and not isinstance(): True is an int to Python.
    if type(value) is not int or value < 0:
        raise InvalidArgumentError(
            f"num_segments must be a non-negative integer, not {value!r:.40}", field="num_segments"
        )
    if value > settings.max_segments:
        raise ArrayTooLargeError(
            f"num_segments is {value}, the limit here is {settings.max_segments}",
            field="num_segments",
        )
    return value


def _boolean(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{field} must be true or false", field=field)
    return value


def _choice(field: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgumentError(f"{field} must be one of {', '.join(choices)}", field=field)
    return value


def _want(value: object) -> Want:
    if not isinstance(value, list) or not value:
        raise InvalidArgumentError(
            f"want must be a list with some of {', '.join(WANTS)}", field="want"
        )
    wanted = {_choice("want", item, WANTS) for item in value}
    return tuple(want for want in WANTS if want in wanted)


def _idx(value: object, settings: Settings) -> Array:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"idx must be a one-dimensional integer array, not {_describe(value)}", field="idx"
        )
    if len(value) > settings.max_rows:
        raise ArrayTooLargeError(
            f"idx has {len(value)} rows, the limit here is {settings.max_rows}", field="idx"
        )
    return value


def _check_ids(
    fields: Fields, idx: Array, num_segments: int, settings: Settings
) -> tuple[bool, bool]:
    """Check the ids against what the request says of them.

    Returns
    -------
    tuple
        Whether all are known to be in range, and whether they are known to ascend. Where nobody
        promised that, it is looked at only where it pays: in a launch that is large.
    """
    is_sorted = _boolean("indices_are_sorted", fields.get("indices_are_sorted", False))
    in_range = not len(idx) or (int(idx.min()) >= 0 and int(idx.max()) < num_segments)
    if _choice("out_of_range", fields.get("out_of_range", "error"), ("error", "drop")) == "error":
        if is_sorted or not in_range:
            segops.check_segment_ids(idx, num_segments, indices_are_sorted=is_sorted)
    elif is_sorted:
        _check_order(idx)
    is_large = len(idx) > settings.batch_rows
    return in_range, is_sorted or (is_large and bool((idx[1:] >= idx[:-1]).all()))


def _check_order(idx: Array) -> None:
    """Check ids promised sorted where those out of range are welcome."""
    falls = idx[1:] < idx[:-1]
    if falls.any():
        position = int(falls.argmax()) + 1
        raise segops.SegmentIdError(
            "idx",
            f"`idx[{position}]` is {idx[position]}, smaller than the id before it; "
            "sort the rows or leave out `indices_are_sorted`.",
            position,
        )


def _form(operation: Operation, fields: Fields) -> tuple[Form, np.dtype[Any]]:
    """Find the form, and with it the dtype, by the first operand."""
    first = operation.operands[0]
    array = _floats(first, fields[first])
    form = operation.form(array.ndim)
    if form is None:
        layouts = " or ".join(spell(form.operands[first]) for form in operation.forms)
        raise InvalidArgumentError(
            f"{first} must have shape {layouts}, not {array.shape}", field=first
        )
    return form, array.dtype


def _floats(field: str, value: object) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.char not in "fd":
        raise InvalidArgumentError(
            f"{field} must be a float32 or float64 array, not {_describe(value)}", field=field
        )
    return value


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__
