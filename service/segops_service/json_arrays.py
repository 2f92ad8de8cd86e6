"""JSON bodies: nested lists to arrays and back, without a guess at what was meant."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from segops_service.calls import Answer, Array
from segops_service.errors import (
    InvalidArgumentError,
    MalformedBodyError,
    NotJsonRepresentableError,
)
from segops_service.operations import Form, Layout, Operation, fill

_NESTED: dict[int, Any] = {1: list[float], 2: list[list[float]], 3: list[list[list[float]]]}
_DTYPES: Mapping[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}
_INT64 = np.iinfo(np.int64)


def decode(operation: Operation, body: bytes | bytearray) -> dict[str, object]:
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
    fields = _parse(body)
    dtype = _dtype(fields.pop("dtype", "float32"))
    form = _form(operation, fields)
    for name, layout in {**form.operands, "cotangent": form.value}.items():
        if fields.get(name) is not None:
            fields[name] = _floats(name, fields[name], dtype, layout)
    tangents = fields.get("tangents")
    if isinstance(tangents, dict):
        fields["tangents"] = {
            name: _floats(f"tangents.{name}", value, dtype, form.operands.get(name, ("N",)))
            for name, value in tangents.items()
        }
    if "idx" in fields:
        fields["idx"] = _ids(fields["idx"])
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
    return msgspec.json.encode(answer, enc_hook=np.ndarray.tolist)


def arrays(answer: Answer) -> Iterator[tuple[str, Array]]:
    """All arrays of an answer with their dotted paths."""
    for name, part in answer.items():
        if isinstance(part, dict):
            yield from ((f"{name}.{key}", array) for key, array in part.items())
        else:
            yield name, part


def _parse(body: bytes | bytearray) -> dict[str, object]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBodyError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedBodyError("the body must be a JSON object")
    return fields


def _dtype(name: object) -> type[np.floating[Any]]:
    if not isinstance(name, str) or name not in _DTYPES:
        raise InvalidArgumentError(f"dtype must be one of {', '.join(_DTYPES)}", field="dtype")
    return _DTYPES[name]


def _form(operation: Operation, fields: Mapping[str, object]) -> Form:
    depth = _depth(fields.get(operation.operands[0]))
    return operation.form(depth) or operation.forms[0]


def _depth(value: object) -> int:
    depth = 0
    while isinstance(value, list):
        depth += 1
        value = value[0] if value else None
    return depth


def _floats(field: str, value: object, dtype: type[np.floating[Any]], layout: Layout) -> Array:
    if value == []:  # nested lists cannot say (0, 3)
        return np.zeros((0, *fill(layout[1:], 0, 0)), dtype)
    try:
        numbers = msgspec.convert(value, _NESTED[max(_depth(value), 1)])
        with np.errstate(over="raise"):
            return np.array(numbers, np.float64).astype(dtype)
    except (KeyError, ValueError, OverflowError, FloatingPointError) as error:
        raise InvalidArgumentError(
            f"{field} must be nested lists of {dtype.__name__} numbers: {_reason(error)}",
            field=field,
        ) from error


def _reason(error: Exception) -> str:
    """Return what is wrong with a list; NumPy's words are about its own internals."""
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    if isinstance(error, KeyError):
        return f"they are nested deeper than {max(_NESTED)} levels"
    if isinstance(error, ValueError):
        return "they are not all of one length"
    return "a number is too large"


def _ids(value: object) -> NDArray[np.int64]:
    try:
        numbers = msgspec.convert(value, list[int])
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(
            f"idx must be a list of integers: {error}", field="idx"
        ) from error
    try:
        return np.array(numbers, np.int64)
    except OverflowError:  # as far out of range as int64 can say
        return np.array([min(max(number, _INT64.min), _INT64.max) for number in numbers], np.int64)
