"""From what a user passes to what the wire carries, with errors that name the argument.

Arrays keep their dtype and must be what the library takes: float32 or float64, all of one dtype,
and integers for ids. Numbers and nested lists have no dtype of their own: they take that of the
arrays beside them, float32 where there are none, and int64 as ids. Shapes and the values of ids are
the service's to check.
"""

import operator
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from segops_client._errors import ArgumentTypeError, ArgumentValueError

Array: TypeAlias = npt.NDArray[Any]


class SupportsDLPack(Protocol):
    """An array of any library that exchanges data by DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


ArrayLike: TypeAlias = npt.ArrayLike | SupportsDLPack

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def floats(operands: Mapping[str, Any]) -> dict[str, Array]:
    """Return the operands as arrays of one floating dtype."""
    arrays = {name: _array(name, value) for name, value in operands.items()}
    typed = [name for name, value in operands.items() if _has_dtype(value)]
    dtype = _common_dtype({name: arrays[name] for name in typed})
    return {
        name: array if name in typed else _numbers(name, array, dtype)
        for name, array in arrays.items()
    }


def ids(value: Any) -> Array:
    """Return ``idx`` as an array of integers."""
    array = _array("idx", value)
    if array.size == 0 and not _has_dtype(value):
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError("idx", f"is {array.dtype}; pass integers")
    return array


def num_segments(value: Any) -> int:
    """Return ``num_segments`` as an int; a bool or a float is none."""
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ArgumentTypeError("num_segments", f"must be an int, not {value!r:.50}")


def flag(name: str, value: Any) -> bool:
    """Return an option that is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(name, f"must be True or False, not {value!r:.50}")
    return bool(value)


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def _array(name: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(name, "is a masked array; fill it or drop the masked rows")
    try:
        if _has_dtype(value) and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except ValueError as error:  # a ragged list
        raise ArgumentValueError(name, f"is no array: {error}") from error
    except (TypeError, RuntimeError, BufferError) as error:  # on a device, or under autograd
        raise ArgumentTypeError(name, f"cannot be read as a NumPy array: {error}") from error


def _common_dtype(arrays: Mapping[str, Array]) -> np.dtype[Any]:
    first, dtype = "", _FLOATS[0]
    for name, array in arrays.items():
        native = array.dtype.newbyteorder("=")
        if native not in _FLOATS:
            raise ArgumentTypeError(name, f"is {array.dtype}; pass float32 or float64")
        if first and native != dtype:
            raise ArgumentTypeError(name, f"is {native} but `{first}` is {dtype}; convert one")
        first, dtype = first or name, native
    return dtype


def _numbers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype.kind not in "iuf":
        raise ArgumentTypeError(name, f"must hold numbers, not {array.dtype}")
    return array.astype(dtype)
