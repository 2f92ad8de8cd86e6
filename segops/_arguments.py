"""Checks and normalisation of arguments, with errors that say what to do.

Everything here runs before any work, also while a function is traced: only shapes, dtypes and
static values are looked at, except in :func:`check_segment_ids`.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from segops._errors import ArgumentTypeError, ArgumentValueError, SegmentIdError

Array = jax.Array

LARGEST = 2**31 - 1
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def segment_count(op: str, value: Any) -> int:
    """Return ``num_segments`` as an int in ``[0, 2**31 - 1]``."""
    where = f"`{op}`: argument `num_segments`"
    if isinstance(value, jax.core.Tracer):
        raise ArgumentTypeError(
            "num_segments",
            f"{where} is traced, but it sets the shape of an array and must be static; mark it with"
            " `static_argnames='num_segments'` in `jax.jit` or close over a Python int.",
        )
    try:
        count = operator.index(value) if not isinstance(value, (bool, np.bool_)) else None
    except TypeError:
        count = None
    if count is None:
        raise ArgumentTypeError(
            "num_segments",
            f"{where} must be a Python int, not {value!r}; pass the number of segments, which is"
            " never inferred from the ids.",
        )
    if not 0 <= count <= LARGEST:
        raise ArgumentValueError(
            "num_segments", f"{where} is {count}; pass a number from 0 to 2**31 - 1."
        )
    return count


def floats(op: str, **operands: Any) -> list[Array]:
    """Return the operands as JAX arrays, all float32 or all float64."""
    arrays = [_floating(op, name, value) for name, value in operands.items()]
    (first, *_), dtype = operands, arrays[0].dtype
    for name, array in zip(operands, arrays, strict=True):
        if array.dtype != dtype:
            raise ArgumentTypeError(
                name,
                f"`{op}`: argument `{name}` is {array.dtype} but `{first}` is {dtype}; convert one"
                f" of them, for example `{name}.astype({first}.dtype)`.",
            )
    return arrays


def _floating(op: str, name: str, value: Any) -> Array:
    array = _array(op, name, value)
    if array.dtype not in _FLOATS:
        raise ArgumentTypeError(
            name,
            f"`{op}`: argument `{name}` is {array.dtype}; pass float32 or float64, for example"
            f" `{name}.astype('float32')`.",
        )
    if isinstance(array, jax.Array) and array.dtype != jax.dtypes.canonicalize_dtype(array.dtype):
        raise ArgumentTypeError(
            name,
            f"`{op}`: argument `{name}` is float64 but JAX's x64 mode is off here; set"
            " `jax_enable_x64`, or pass float32.",
        )
    return jnp.asarray(array)


def _array(op: str, name: str, value: Any) -> Any:
    """Return a JAX array as it is, anything else as a NumPy array in native byte order."""
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            name,
            f"`{op}`: argument `{name}` is a masked array, whose mask would be lost; pass"
            f" `{name}.filled(...)` or drop the masked rows.",
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentValueError(
            name,
            f"`{op}`: argument `{name}` is no array: {error}; pass rows of equal length.",
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def shape(op: str, name: str, array: Array, *allowed: tuple[int | str, ...]) -> None:
    """Check an array against shapes such as ``("N", 3)``, where a letter stands for any length."""
    if not any(_matches(array.shape, want) for want in allowed):
        wanted = " or ".join(_written(want) for want in allowed)
        raise ArgumentValueError(
            name,
            f"`{op}`: argument `{name}` has shape {array.shape}; pass shape {wanted}.",
        )
    if array.size > LARGEST:
        raise ArgumentValueError(
            name,
            f"`{op}`: argument `{name}` has {array.size} elements, over the limit of 2**31 - 1;"
            " split the rows into several calls.",
        )


def _matches(have: tuple[int, ...], want: tuple[int | str, ...]) -> bool:
    return len(have) == len(want) and all(
        isinstance(w, str) or h == w for h, w in zip(have, want, strict=True)
    )


def _written(want: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, want))}{',' if len(want) == 1 else ''})"


def length(op: str, name: str, array: Array, expected: int, of: str) -> None:
    """Check that an array has as many rows as another argument says."""
    if array.shape[0] != expected:
        raise ArgumentValueError(
            name,
            f"`{op}`: argument `{name}` has {array.shape[0]} rows but {of} is {expected}; they must"
            " be equal.",
        )


def output(op: str, segments: int, width: int) -> None:
    """Check that the result's elements can be counted in 31 bits."""
    if segments * width > LARGEST:
        raise ArgumentValueError(
            "num_segments",
            f"`{op}`: argument `num_segments` is {segments}, so the result would have"
            f" {segments * width} elements, over the limit of 2**31 - 1; pass fewer segments.",
        )


def ids(op: str, idx: Any, segments: int, indices_are_sorted: bool) -> Array:
    """Return ``idx`` as an int32 array in which ids out of range stay out of range."""
    array = _integers(op, idx)
    if not isinstance(indices_are_sorted, (bool, np.bool_)):
        raise ArgumentTypeError(
            "indices_are_sorted",
            f"`{op}`: argument `indices_are_sorted` is {_shown(indices_are_sorted)}; pass True or"
            " False.",
        )
    return jnp.asarray(_narrow(array, segments))


def _shown(value: Any) -> str:
    return "traced" if isinstance(value, jax.core.Tracer) else repr(value)


def _integers(op: str, idx: Any) -> Any:
    array = _array(op, "idx", idx)
    if array.size == 0 and isinstance(idx, (list, tuple)):
        array = array.astype(np.int32)
    if not jnp.issubdtype(array.dtype, np.integer):
        raise ArgumentTypeError(
            "idx",
            f"`{op}`: argument `idx` is {array.dtype}; pass integers, for example"
            " `idx.astype('int32')`.",
        )
    if array.ndim != 1:
        raise ArgumentValueError(
            "idx", f"`{op}`: argument `idx` has shape {array.shape}; pass shape (N,)."
        )
    return array


def _narrow(array: Any, segments: int) -> Any:
    """Cast to int32; ids of 32 or more bits are clipped first, so that none wraps into range."""
    xp = jnp if isinstance(array, jax.Array) else np
    if array.dtype == np.int32:
        return array
    if array.dtype.itemsize >= 4:
        lowest = array.dtype.type(0 if jnp.issubdtype(array.dtype, np.unsignedinteger) else -1)
        array = xp.clip(array, lowest, array.dtype.type(segments))
    return array.astype(np.int32)


def check_segment_ids(
    idx: ArrayLike, num_segments: int, *, indices_are_sorted: bool = False
) -> None:
    """Raise if an id is out of range or, where ids are promised sorted, out of order.

    The operations drop ids out of range and take a promise of order at its word. This looks at the
    values, on the host, so it cannot be used on traced arrays. ``SEGOPS_CHECK=1`` in the
    environment makes each operation call it on ids that are not traced.

    Parameters
    ----------
    idx : array_like of int, shape (N,)
        Segment ids.
    num_segments : int
        Number of segments; ids must lie in ``[0, num_segments)``.
    indices_are_sorted : bool
        Also require ids in ascending order.

    Raises
    ------
    SegmentIdError
        Naming the first offending position, also its attribute ``position``.
    ArgumentTypeError, ArgumentValueError
        If `idx` holds no integers, is not one-dimensional, or `num_segments` cannot be used.

    Examples
    --------
    >>> import segops
    >>> segops.check_segment_ids([0, 0, 1], 2, indices_are_sorted=True)
    >>> segops.check_segment_ids([0, 5], 2)
    Traceback (most recent call last):
    ...
    segops._errors.SegmentIdError: `idx[1]` is 5, outside [0, 2); drop it or raise `num_segments`.
    """
    op = "check_segment_ids"
    segments = segment_count(op, num_segments)
    array = np.asarray(_integers(op, idx))
    outside = (array < 0) | (array >= segments)
    if outside.any():
        at = int(outside.argmax())
        raise SegmentIdError(
            "idx",
            f"`idx[{at}]` is {array[at]}, outside [0, {segments}); drop it or raise"
            " `num_segments`.",
            at,
        )
    falls = array[1:] < array[:-1]
    if indices_are_sorted and falls.any():
        at = int(falls.argmax()) + 1
        raise SegmentIdError(
            "idx",
            f"`idx[{at}]` is {array[at]} after {array[at - 1]}, but `indices_are_sorted=True`"
            " promises ascending order; sort the rows by `idx` or withdraw the promise.",
            at,
        )
