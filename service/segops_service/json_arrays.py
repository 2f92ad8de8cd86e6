"""JSON bodies: nested lists to arrays and back, without a guess at what was meant."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import segops
from segops_service.calls import Answer, Array
from segops_service.errors import (
    InvalidArgumentError,
    MalformedBodyError,
    NotJsonRepresentableError,
)
from segops_service.operations import Form, Layout, Operation, fill
from segops_service.validation import OPTIONS

_FLOATS: Mapping[int, Any] = {1: list[float], 2: list[list[float]], 3: list[list[list[float]]]}
_DTYPES: Mapping[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}
_INT64 = np.iinfo(np.int64)
_OPENING = re.compile(rb"[\s\[]*")
_ROW_END = {depth: re.compile(rb"\]\s*" * (depth - 1) + rb",") for depth in _FLOATS}
_NULL = re.compile(rb"null")
_EMPTY = re.compile(rb"\s*\[\s*\]\s*")

_PIECE = 4 * 1024
"""Bytes, or numbers, that are converted at once.

The interpreter's lock is held for so long, and so few lists are there at a time that the garbage
collector never takes them for objects that stay.
"""

_LONGEST_PIECE = 16 * _PIECE

Buffer = bytes | bytearray | memoryview
RawFields = dict[str, msgspec.Raw]


def decode(operation: Operation, body: Buffer) -> dict[str, object]:
    """Read a JSON body, with its nested lists as arrays.

    Parameters
    ----------
    operation
        Says which fields are arrays, and what shape an empty list stands for.
    body
        The bytes as they came.

    Returns
    -------
    dict
        The fields as the msgpack form would have them; ``dtype`` is used up.
    """
    raw = _parse(body)
    dtype = _dtype(raw.pop("dtype", None))
    form = operation.form(_depth(raw.get(operation.operands[0]))) or operation.forms[0]
    layouts = {**form.operands, "cotangent": form.value}
    fields: dict[str, object] = {}
    for name, value in raw.items():
        if name in layouts:
            fields[name] = _floats(name, value, dtype, layouts[name])
        elif name == "tangents":
            fields[name] = _tangents(value, dtype, form)
        elif name in ("num_segments", *OPTIONS):
            fields[name] = _plain(name, value)
        else:  # an unknown field, which is refused by its name alone, or idx
            fields[name] = None
    if "idx" in raw:
        fields["idx"] = _ids(raw["idx"], fields)
    return fields


def encode(answer: Answer) -> bytes:
    """Write an answer as JSON; refuse NaN and Inf, which JSON has no word for."""
    for path, array in arrays(answer):
        if not np.isfinite(array).all():
            raise NotJsonRepresentableError(
                f"{path} holds NaN or Inf, which JSON cannot carry; "
                "ask for msgpack with the Accept header",
                field=path,
            )
    return msgspec.json.encode(answer, enc_hook=_text)


def arrays(answer: Answer) -> Iterator[tuple[str, Array]]:
    """All arrays of an answer with their dotted paths."""
    for name, part in answer.items():
        if isinstance(part, dict):
            yield from ((f"{name}.{key}", array) for key, array in part.items())
        else:
            yield name, part


def _text(array: Array) -> msgspec.Raw:
    """Write an array as nested lists, piece by piece."""
    rows = max(1, _PIECE * len(array) // max(1, array.size))
    pieces = (array[at : at + rows].tolist() for at in range(0, len(array), rows))
    return msgspec.Raw(b"[%b]" % b",".join(msgspec.json.encode(piece)[1:-1] for piece in pieces))


def _parse(body: Buffer) -> RawFields:
    try:
        raw: RawFields = _decode(body, RawFields)
    except msgspec.ValidationError as error:
        raise MalformedBodyError("the body must be a JSON object") from error
    return raw


def _decode(text: Buffer | msgspec.Raw, kind: Any = Any) -> Any:
    """Decode JSON; a ``ValidationError`` says that it is sound, but no ``kind``."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBodyError(f"the body is not JSON: {error}") from error


def _plain(field: str, value: msgspec.Raw) -> object:
    if memoryview(value).nbytes > _PIECE:
        raise InvalidArgumentError(f"{field} is longer than any value of use", field=field)
    try:
        return _decode(value)
    except msgspec.ValidationError as error:  # a number that no type here holds
        raise InvalidArgumentError(f"{field} cannot be used: {error}", field=field) from error


def _dtype(value: msgspec.Raw | None) -> type[np.floating[Any]]:
    name = "float32" if value is None else _plain("dtype", value)
    if not isinstance(name, str) or name not in _DTYPES:
        raise InvalidArgumentError(f"dtype must be one of {', '.join(_DTYPES)}", field="dtype")
    return _DTYPES[name]


def _depth(value: msgspec.Raw | None) -> int:
    """Levels of lists around the first number."""
    opening = _OPENING.match(value or b"")
    return opening[0].count(b"[") if opening else 0


def _tangents(value: msgspec.Raw, dtype: type[np.floating[Any]], form: Form) -> object:
    try:
        raw = _decode(value, RawFields)
    except msgspec.ValidationError:
        return _plain("tangents", value)
    return {
        name: _floats(f"tangents.{name}", tangent, dtype, form.operands.get(name, ("N",)))
        for name, tangent in raw.items()
    }


def _floats(
    field: str, value: msgspec.Raw, dtype: type[np.floating[Any]], layout: Layout
) -> Array | None:
    if _NULL.fullmatch(value):
        return None
    if _EMPTY.fullmatch(value):  # nested lists cannot say (0, 3)
        return np.zeros((0, *fill(layout[1:], 0, 0)), dtype)
    try:
        with np.errstate(over="raise"):
            depth = max(_depth(value), 1)
            return _numbers(value, _FLOATS[depth], depth, np.float64).astype(dtype)
    except (KeyError, ValueError, FloatingPointError, msgspec.ValidationError) as error:
        raise InvalidArgumentError(
            f"{field} must be nested lists of {dtype.__name__} numbers: {_reason(error)}",
            field=field,
        ) from error


def _numbers(value: msgspec.Raw, kind: Any, depth: int, dtype: type[np.generic]) -> Array:
    """Decode nested lists of a kind, piece by piece."""
    arrays: list[Array] = []
    for piece in _pieces(value, depth):
        try:
            arrays.append(np.array(_decode(piece, kind), dtype))
        except msgspec.ValidationError as error:
            raise _moved(error, sum(map(len, arrays))) from error
        except MalformedBodyError as error:  # the value is sound, and was cut in a string
            raise msgspec.ValidationError("there is more in them than numbers") from error
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _pieces(value: msgspec.Raw, depth: int) -> Iterator[bytes | msgspec.Raw]:
    """Cut the text of a sound list between its rows."""
    text = memoryview(value)
    if text.nbytes <= _PIECE:
        yield value
        return
    begin, end = 1, text.nbytes - 1
    while begin < end:
        row_end = _ROW_END[depth].search(text, begin + _PIECE, end)
        stop = row_end.end() - 1 if row_end else end
        if stop - begin > _LONGEST_PIECE:
            raise msgspec.ValidationError("a row is longer than any of use")
        yield b"".join((b"[", text[begin:stop], b"]"))
        begin = stop + 1


def _moved(error: msgspec.ValidationError, rows: int) -> msgspec.ValidationError:
    """Return the error of a piece with its place in the whole."""
    text = re.sub(r"\$\[(\d+)", lambda row: f"$[{int(row[1]) + rows}", str(error), count=1)
    return msgspec.ValidationError(text)


def _reason(error: Exception) -> str:
    """Return what is wrong with a list; NumPy's words are about its own internals."""
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    if isinstance(error, KeyError):
        return f"they are nested deeper than {max(_FLOATS)} levels"
    if isinstance(error, ValueError):
        return "they are not all of one length"
    return "a number is too large"


def _ids(value: msgspec.Raw, fields: Mapping[str, object]) -> NDArray[np.int64]:
    try:
        return _numbers(value, list[int], 1, np.int64)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(
            f"idx must be a list of integers: {error}", field="idx"
        ) from error
    except OverflowError:
        numbers: list[int] = _decode(value, list[int])
        _require_in_range(numbers, fields)
        # Out of any range, as they were.
        return np.array([min(max(number, _INT64.min), _INT64.max) for number in numbers], np.int64)


def _require_in_range(numbers: list[int], fields: Mapping[str, object]) -> None:
    """Refuse the first id out of range by the number that was sent, which no array can hold."""
    segments = fields.get("num_segments")
    if type(segments) is not int or fields.get("out_of_range", "error") != "error":
        return  # the other field is at fault, or the row is to be dropped
    for position, number in enumerate(numbers):
        if not 0 <= number < segments:
            raise segops.SegmentIdError(
                "idx",
                f"`idx[{position}]` is {number}, outside [0, {segments}); drop it or raise"
                " `num_segments`.",
                position,
            )
