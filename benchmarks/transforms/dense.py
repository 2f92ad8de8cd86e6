"""The six ops in dense algebra: the segments as a matrix of ones and zeros.

Neither scatter nor gather takes part, and JAX differentiates and batches all of it natively: in
float64 this is what every other result is judged against.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

SEGMENTS = 4


def _members(idx: Array) -> Array:
    return jax.nn.one_hot(idx, SEGMENTS, dtype=jnp.float64)


def _sum(x: Array, idx: Array) -> Array:
    return jnp.einsum("ns,nk->sk", _members(idx), x)


def _mean(x: Array, idx: Array) -> Array:
    return _sum(x, idx) / _count(idx)[:, None]


def _dot(x: Array, y: Array, idx: Array) -> Array:
    return jnp.einsum("ns,nk,nk->s", _members(idx), x, y)


def _rms_norm(x: Array, idx: Array) -> Array:
    mean = _dot(x, x, idx) / _count(idx)
    return jnp.where(mean > 0, jnp.sqrt(jnp.where(mean > 0, mean, 1)), 0)


def _mul(x: Array, y: Array, idx: Array) -> Array:
    return jnp.einsum("ns,nk,s->nk", _members(idx), x, y)


def _matvec(v: Array, m: Array, idx: Array) -> Array:
    return jnp.einsum("ns,nj,sjk->nk", _members(idx), v, m)


def _count(idx: Array) -> Array:
    return jnp.maximum(jnp.sum(_members(idx), axis=0), 1)


OPS: Mapping[str, Callable[..., Array]] = {
    "sum": _sum,
    "mean": _mean,
    "dot": _dot,
    "rms_norm": _rms_norm,
    "mul": _mul,
    "matvec": _matvec,
}
