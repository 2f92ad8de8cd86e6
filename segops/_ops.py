"""The six operations: check the arguments, bring them into the primitives' form, bind.

Inside, an array carries a batch axis of one and an explicit width: ``(1, N, W)``.
"""

import os
from functools import partial
from typing import Any

import jax
from jax.typing import ArrayLike

from segops import _arguments as arguments
from segops._primitives import bind, dot_p, matvec_p, mul_p, rms_p, sum_p

Array = jax.Array


def segmented_sum(
    x: ArrayLike, idx: ArrayLike, num_segments: int, *, indices_are_sorted: bool = False
) -> Array:
    r"""Sum the rows of each segment.

    .. math:: out_s = \sum_{i : idx_i = s} x_i

    Parameters
    ----------
    x : array_like, shape (N,) or (N, 3), float32 or float64
        Rows.
    idx : array_like of int, shape (N,)
        The segment of each row, in any order. Ids outside ``[0, num_segments)`` are dropped.
    num_segments : int
        Number of segments; static under `jax.jit`.
    indices_are_sorted : bool
        Promise that `idx` ascends, which allows a faster path. If the promise is broken the result
        is unspecified; see `check_segment_ids`.

    Returns
    -------
    jax.Array, shape (num_segments,) or (num_segments, 3)
        Sums; 0 for an empty segment.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If a dtype, a shape or `num_segments` cannot be used; raised before any work.

    Notes
    -----
    float32 is accumulated in float64, float64 with Knuth's TwoSum (*The Art of Computer
    Programming*, vol. 2, 4.2.2); the sum is rounded once.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> segops.segmented_sum(jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 0, 2]), 3).tolist()
    [3.0, 0.0, 4.0]
    """
    return _reduce_one("segmented_sum", _sum, x, idx, num_segments, indices_are_sorted)


def segmented_mean(
    x: ArrayLike, idx: ArrayLike, num_segments: int, *, indices_are_sorted: bool = False
) -> Array:
    r"""Average the rows of each segment.

    .. math:: out_s = \frac{1}{n_s} \sum_{i : idx_i = s} x_i

    Parameters
    ----------
    x : array_like, shape (N,) or (N, 3), float32 or float64
        Rows.
    idx, num_segments, indices_are_sorted
        As in `segmented_sum`. Dropped rows do not count.

    Returns
    -------
    jax.Array, shape (num_segments,) or (num_segments, 3)
        Means; 0, with zero derivatives, for an empty segment.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `segmented_sum`.

    Notes
    -----
    The division happens on the wide sum, so a mean in range never overflows on the way.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> segops.segmented_mean(jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 0, 2]), 3).tolist()
    [1.5, 0.0, 4.0]
    """
    return _reduce_one("segmented_mean", _mean, x, idx, num_segments, indices_are_sorted)


def segmented_rms_norm(
    x: ArrayLike, idx: ArrayLike, num_segments: int, *, indices_are_sorted: bool = False
) -> Array:
    r"""Root of the mean squared Euclidean norm of each segment's rows.

    .. math:: out_s = \sqrt{\frac{1}{n_s} \sum_{i : idx_i = s} \lVert x_i \rVert^2}

    The mean is over rows; it is not divided by 3. For positions about their centre this is the
    radius of gyration.

    Parameters
    ----------
    x : array_like, shape (N, 3), float32 or float64
        Rows.
    idx, num_segments, indices_are_sorted
        As in `segmented_sum`.

    Returns
    -------
    jax.Array, shape (num_segments,)
        In the units of `x`; 0 for an empty segment. Where the norm is 0, derivatives of every
        order are taken to be 0.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `segmented_sum`.

    Notes
    -----
    Squares do not overflow or underflow where the result does not: float32 squares are formed in
    float64, and float64 sums that leave the safe range are formed again from scaled rows (J. L.
    Blue, *ACM Trans. Math. Softw.* 4, 15, 1978). Subnormal numbers are 0 on the CPU, as in all of
    XLA.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x = jnp.array([[3.0, 4.0, 0.0], [0.0, 0.0, 5.0]])
    >>> segops.segmented_rms_norm(x, jnp.array([0, 0]), 2).tolist()
    [5.0, 0.0]
    """
    name = "segmented_rms_norm"
    return _reduce_one(name, _rms_norm, x, idx, num_segments, indices_are_sorted, vectors=True)


def segmented_dot(
    x: ArrayLike,
    y: ArrayLike,
    idx: ArrayLike,
    num_segments: int,
    *,
    indices_are_sorted: bool = False,
) -> Array:
    r"""Sum the dot products of paired rows of each segment.

    .. math:: out_s = \sum_{i : idx_i = s} x_i \cdot y_i

    Parameters
    ----------
    x, y : array_like, shape (N, 3), float32 or float64
        Rows, both of one dtype.
    idx, num_segments, indices_are_sorted
        As in `segmented_sum`.

    Returns
    -------
    jax.Array, shape (num_segments,)
        Sums; 0 for an empty segment.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `segmented_sum`.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x = jnp.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])
    >>> segops.segmented_dot(x, x, jnp.array([1, 1]), 2).tolist()
    [0.0, 15.0]
    """
    op = "segmented_dot"
    segments, idx = _labels(op, idx, num_segments, indices_are_sorted)
    x, y = arguments.floats(op, x=x, y=y)
    _check_rows(op, idx, x=x, y=y)
    return _dot(x, y, idx, num_segments=segments, indices_are_sorted=bool(indices_are_sorted))


def segmented_mul(
    x: ArrayLike,
    y: ArrayLike,
    idx: ArrayLike,
    num_segments: int,
    *,
    indices_are_sorted: bool = False,
) -> Array:
    r"""Scale each row by the number of its segment.

    .. math:: out_i = x_i \, y_{idx_i}

    Parameters
    ----------
    x : array_like, shape (N, 3), float32 or float64
        Rows.
    y : array_like, shape (num_segments,), dtype of `x`
        One number a segment.
    idx, num_segments, indices_are_sorted
        As in `segmented_sum`.

    Returns
    -------
    jax.Array, shape (N, 3)
        Scaled rows; 0 where the id is out of range, whatever the row holds.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `segmented_sum`.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x, y, idx = jnp.ones((2, 3)), jnp.array([2.0, 5.0]), jnp.array([1, -1])
    >>> segops.segmented_mul(x, y, idx, 2).tolist()
    [[5.0, 5.0, 5.0], [0.0, 0.0, 0.0]]
    """
    op = "segmented_mul"
    segments, idx = _labels(op, idx, num_segments, indices_are_sorted)
    x, y = arguments.floats(op, x=x, y=y)
    _check_rows(op, idx, x=x)
    _check_segments(op, "y", y, segments, ("S",))
    return _mul(x, y, idx, indices_are_sorted=bool(indices_are_sorted))


def segmented_matvec(
    v: ArrayLike,
    m: ArrayLike,
    idx: ArrayLike,
    num_segments: int,
    *,
    indices_are_sorted: bool = False,
) -> Array:
    r"""Multiply each row by the transposed matrix of its segment.

    .. math:: out_{ia} = \sum_b m_{idx_i, b a} \, v_{i b} \qquad (out_i = m_{idx_i}^T v_i)

    With ``m`` a cell matrix whose rows are lattice vectors, this takes fractional coordinates to
    Cartesian ones.

    Parameters
    ----------
    v : array_like, shape (N, 3), float32 or float64
        Rows.
    m : array_like, shape (num_segments, 3, 3), dtype of `v`
        One matrix a segment.
    idx, num_segments, indices_are_sorted
        As in `segmented_sum`.

    Returns
    -------
    jax.Array, shape (N, 3)
        Products; 0 where the id is out of range, whatever the row holds.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As in `segmented_sum`.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> cell = jnp.array([[[2.0, 0.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 4.0]]])
    >>> segops.segmented_matvec(jnp.array([[0.0, 1.0, 0.0]]), cell, jnp.array([0]), 1).tolist()
    [[1.0, 3.0, 0.0]]
    """
    op = "segmented_matvec"
    segments, idx = _labels(op, idx, num_segments, indices_are_sorted)
    v, m = arguments.floats(op, v=v, m=m)
    _check_rows(op, idx, v=v)
    _check_segments(op, "m", m, segments, ("S", 3, 3))
    return _matvec(v, m, idx, indices_are_sorted=bool(indices_are_sorted))


# --- checks ------------------------------------------------------------------------------------


def _labels(
    op: str, idx: ArrayLike, num_segments: int, indices_are_sorted: bool
) -> tuple[int, Array]:
    segments = arguments.segment_count(op, num_segments)
    labels = arguments.ids(op, idx, segments, indices_are_sorted)
    if os.environ.get("SEGOPS_CHECK") == "1" and not isinstance(idx, jax.core.Tracer):
        arguments.check_segment_ids(idx, segments, indices_are_sorted=indices_are_sorted)
    return segments, labels


def _check_rows(op: str, idx: Array, **rows: Array) -> None:
    for name, array in rows.items():
        arguments.shape(op, name, array, ("N", 3))
        arguments.length(op, name, array, idx.shape[0], "the length of `idx`")


def _check_segments(
    op: str, name: str, array: Array, segments: int, shape: tuple[int | str, ...]
) -> None:
    arguments.shape(op, name, array, shape)
    arguments.length(op, name, array, segments, "`num_segments`")


def _reduce_one(
    op: str,
    reduce: Any,
    x: ArrayLike,
    idx: ArrayLike,
    num_segments: int,
    indices_are_sorted: bool,
    vectors: bool = False,
) -> Array:
    segments, labels = _labels(op, idx, num_segments, indices_are_sorted)
    (rows,) = arguments.floats(op, x=x)
    arguments.shape(op, "x", rows, *([("N", 3)] if vectors else [("N",), ("N", 3)]))
    arguments.length(op, "x", rows, labels.shape[0], "the length of `idx`")
    arguments.output(op, segments, 3 if rows.ndim == 2 and not vectors else 1)
    return reduce(rows, labels, num_segments=segments, indices_are_sorted=bool(indices_are_sorted))


# --- the work ----------------------------------------------------------------------------------

_jit = partial(jax.jit, static_argnames=("num_segments", "indices_are_sorted"))


@_jit
def _sum(x: Array, idx: Array, **static: Any) -> Array:
    return _unbatched(bind(sum_p, _batched(x), idx[None], mean=False, **static), x.ndim)


@_jit
def _mean(x: Array, idx: Array, **static: Any) -> Array:
    return _unbatched(bind(sum_p, _batched(x), idx[None], mean=True, **static), x.ndim)


@_jit
def _rms_norm(x: Array, idx: Array, **static: Any) -> Array:
    return _unbatched(bind(rms_p, _batched(x), idx[None], **static), 1)


@_jit
def _dot(x: Array, y: Array, idx: Array, **static: Any) -> Array:
    out = bind(dot_p, _batched(x), _batched(y), idx[None], mean=False, **static)
    return _unbatched(out, 1)


@_jit
def _mul(x: Array, y: Array, idx: Array, **static: Any) -> Array:
    return bind(mul_p, _batched(x), _batched(y), idx[None], mean=False, **static)[0]


@_jit
def _matvec(v: Array, m: Array, idx: Array, **static: Any) -> Array:
    return bind(matvec_p, _batched(v), m.reshape(1, -1, 9), idx[None], **static)[0]


def _batched(rows: Array) -> Array:
    return rows.reshape(1, rows.shape[0], 3 if rows.ndim == 2 else 1)


def _unbatched(out: Array, ndim: int) -> Array:
    return out[0] if ndim == 2 else out[0, :, 0]
