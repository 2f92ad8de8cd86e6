"""The six ops as a JAX user writes them today, from ``jax.ops`` and indexing."""

import jax
import jax.numpy as jnp
from jax import Array


def segmented_sum(x: Array, idx: Array, num_segments: int, *, is_sorted: bool) -> Array:
    """Add the rows of each segment."""
    return jax.ops.segment_sum(x, idx, num_segments, indices_are_sorted=is_sorted)


def segmented_mean(x: Array, idx: Array, num_segments: int, *, is_sorted: bool) -> Array:
    """Average the rows of each segment, 0 where there are none."""
    total = segmented_sum(x, idx, num_segments, is_sorted=is_sorted)
    count = _count(x, idx, num_segments, is_sorted)
    return total / count.reshape(count.shape + (1,) * (x.ndim - 1))


def segmented_dot(x: Array, y: Array, idx: Array, num_segments: int, *, is_sorted: bool) -> Array:
    """Add the products of the rows of each segment."""
    return segmented_sum(jnp.sum(x * y, axis=-1), idx, num_segments, is_sorted=is_sorted)


def segmented_rms_norm(x: Array, idx: Array, num_segments: int, *, is_sorted: bool) -> Array:
    """Root of the mean squared norm of each segment's rows."""
    square = segmented_dot(x, x, idx, num_segments, is_sorted=is_sorted)
    # The inner where keeps the root away from 0, where its derivative is infinite.
    positive = square > 0
    mean = jnp.where(positive, square, 1) / _count(x, idx, num_segments, is_sorted)
    return jnp.where(positive, jnp.sqrt(mean), 0)


def segmented_mul(x: Array, y: Array, idx: Array, num_segments: int, *, is_sorted: bool) -> Array:
    """Scale each row by its segment's number."""
    del num_segments, is_sorted
    return x * y[idx][:, None]


def segmented_matvec(
    v: Array, m: Array, idx: Array, num_segments: int, *, is_sorted: bool
) -> Array:
    """Multiply each row by its segment's transposed matrix."""
    del num_segments, is_sorted
    return jnp.einsum("nij,ni->nj", m[idx], v)


def _count(x: Array, idx: Array, num_segments: int, is_sorted: bool) -> Array:
    ones = jnp.ones(idx.shape, x.dtype)
    return jnp.maximum(segmented_sum(ones, idx, num_segments, is_sorted=is_sorted), 1)
