"""The operations as cases, problems to run them on, and what they are compared with.

Two independent references: a NumPy loop in float64 (values), and a composition of `jax.ops` whose
derivatives JAX forms itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import segops

# --- oracle: NumPy loops in float64 --------------------------------------------------------------


def _wide(*arrays: Any) -> list[np.ndarray]:
    return [np.asarray(a).astype(np.float64) for a in arrays]


def _rows_of(idx: Any, num_segments: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(num_segments)]
    for i, s in enumerate(np.asarray(idx).tolist()):
        if 0 <= s < num_segments:
            rows[s].append(i)
    return rows


def numpy_sum(x: Any, idx: Any, num_segments: int) -> np.ndarray:
    (x,) = _wide(x)
    out = np.zeros((num_segments, *x.shape[1:]))
    for s, rows in enumerate(_rows_of(idx, num_segments)):
        for i in rows:
            out[s] += x[i]
    return out


def numpy_mean(x: Any, idx: Any, num_segments: int) -> np.ndarray:
    out = numpy_sum(x, idx, num_segments)
    for s, rows in enumerate(_rows_of(idx, num_segments)):
        out[s] /= max(len(rows), 1)
    return out


def numpy_dot(x: Any, y: Any, idx: Any, num_segments: int) -> np.ndarray:
    x, y = _wide(x, y)
    out = np.zeros(num_segments)
    for s, rows in enumerate(_rows_of(idx, num_segments)):
        for i in rows:
            out[s] += np.dot(x[i], y[i])
    return out


def numpy_rms_norm(x: Any, idx: Any, num_segments: int) -> np.ndarray:
    counts = [max(len(rows), 1) for rows in _rows_of(idx, num_segments)]
    return np.sqrt(numpy_dot(x, x, idx, num_segments) / np.array(counts, float))


def numpy_mul(x: Any, y: Any, idx: Any, num_segments: int) -> np.ndarray:
    x, y = _wide(x, y)
    out = np.zeros_like(x)
    for s, rows in enumerate(_rows_of(idx, num_segments)):
        for i in rows:
            out[i] = x[i] * y[s]
    return out


def numpy_matvec(v: Any, m: Any, idx: Any, num_segments: int) -> np.ndarray:
    v, m = _wide(v, m)
    out = np.zeros_like(v)
    for s, rows in enumerate(_rows_of(idx, num_segments)):
        for i in rows:
            out[i] = m[s].T @ v[i]
    return out


# --- composition of jax.ops, for JAX to differentiate --------------------------------------------


def _take(y: jax.Array, idx: jax.Array) -> jax.Array:
    return y.at[idx].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _counts(idx: jax.Array, num_segments: int, dtype: Any) -> jax.Array:
    ones = jnp.ones(idx.shape, dtype)
    return jnp.maximum(jax.ops.segment_sum(ones, idx, num_segments), jnp.ones((), dtype))


def composed_sum(x: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    return jax.ops.segment_sum(x, idx, num_segments)


def composed_mean(x: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    counts = _counts(idx, num_segments, x.dtype)
    total = jax.ops.segment_sum(x, idx, num_segments)
    return total / jnp.expand_dims(counts, tuple(range(1, x.ndim)))


def composed_dot(x: jax.Array, y: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    return jax.ops.segment_sum(jnp.sum(x * y, axis=1), idx, num_segments)


def composed_rms_norm(x: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    square = composed_dot(x, x, idx, num_segments) / _counts(idx, num_segments, x.dtype)
    positive = square > 0
    root = jnp.sqrt(jnp.where(positive, square, jnp.ones_like(square)))
    return jnp.where(positive, root, jnp.zeros_like(root))


def composed_mul(x: jax.Array, y: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    del num_segments
    return x * _take(y, idx)[:, None]


def composed_matvec(v: jax.Array, m: jax.Array, idx: jax.Array, num_segments: int) -> jax.Array:
    del num_segments
    return jnp.einsum("nba,nb->na", _take(m, idx), v)


# --- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """An operation at one layout of its operands."""

    name: str
    op: Callable[..., jax.Array]
    composed: Callable[..., jax.Array]
    oracle: Callable[..., np.ndarray]
    shapes: dict[str, tuple[int | str, ...]]
    linear: bool = True

    @property
    def broadcasts(self) -> bool:
        """Whether the result has rows, not segments."""
        return any(shape[0] == "S" for shape in self.shapes.values())

    def __repr__(self) -> str:
        return self.name


def _case(name: str, linear: bool = True, **shapes: tuple[int | str, ...]) -> Case:
    stem = name.partition("-")[0]
    names = globals()
    op = getattr(segops, f"segmented_{stem}")
    return Case(name, op, names[f"composed_{stem}"], names[f"numpy_{stem}"], shapes, linear)


CASES = [
    _case("sum-scalar", x=("N",)),
    _case("sum-vec3", x=("N", 3)),
    _case("mean-scalar", x=("N",)),
    _case("mean-vec3", x=("N", 3)),
    _case("dot", x=("N", 3), y=("N", 3)),
    _case("rms_norm", linear=False, x=("N", 3)),
    _case("mul", x=("N", 3), y=("S",)),
    _case("matvec", v=("N", 3), m=("S", 3, 3)),
]

# Rows of segments 0 and 3 are interleaved, 2 and 4 are empty, ids are out of range at both ends.
SHUFFLED = np.array([3, -1, 0, 3, 5, 0, 1, 3, 2**31 - 1], np.int32)
SEGMENTS = 5


@dataclass(frozen=True, eq=False)
class Problem:
    """A case with everything it is called on."""

    case: Case
    operands: tuple[np.ndarray, ...]
    idx: np.ndarray
    num_segments: int = SEGMENTS
    indices_are_sorted: bool = False

    @property
    def valid(self) -> np.ndarray:
        """Which rows have an id in range."""
        return (self.idx >= 0) & (self.idx < self.num_segments)

    @property
    def expected(self) -> np.ndarray:
        """The value by the NumPy loop."""
        return self.case.oracle(*self.operands, self.idx, self.num_segments)

    @property
    def value(self) -> jax.Array:
        """The value by the library."""
        return self.function(*self.operands)

    def function(self, *operands: Any, idx: Any = None) -> jax.Array:
        """Call the operation on other operands, and on other ids if given."""
        return self.case.op(
            *operands,
            self.idx if idx is None else idx,
            self.num_segments,
            indices_are_sorted=self.indices_are_sorted,
        )

    def composed(self, *operands: Any, idx: Any = None) -> jax.Array:
        """Call the composition of `jax.ops` in the operation's place."""
        return self.case.composed(
            *map(jnp.asarray, operands),
            jnp.asarray(self.idx if idx is None else idx),
            self.num_segments,
        )

    def astype(self, dtype: Any) -> "Problem":
        return replace(self, operands=tuple(a.astype(dtype) for a in self.operands))

    def __repr__(self) -> str:
        return f"{self.case}-{'sorted' if self.indices_are_sorted else 'shuffled'}"


def operands_of(
    case: Case, rows: int, num_segments: int, seed: int = 0, dtype: Any = np.float64
) -> tuple[np.ndarray, ...]:
    """Return normal random operands of the case's shapes."""
    sizes = {"N": rows, "S": num_segments}
    rng = np.random.default_rng(seed)
    return tuple(
        rng.normal(size=[n if isinstance(n, int) else sizes[n] for n in shape]).astype(dtype)
        for shape in case.shapes.values()
    )


def problem(
    case: Case,
    idx: Any = SHUFFLED,
    num_segments: int = SEGMENTS,
    *,
    ordered: bool = False,
    seed: int = 0,
    dtype: Any = np.float64,
) -> Problem:
    """Return the case on random operands; `ordered` sorts the ids and promises so."""
    idx = np.sort(idx) if ordered else np.asarray(idx)
    operands = operands_of(case, len(idx), num_segments, seed, dtype)
    return Problem(case, operands, idx, num_segments, ordered)


PROBLEMS = [problem(case) for case in CASES]
SORTED_PROBLEMS = [problem(case, ordered=True) for case in CASES]

# Each differentiable operand alone, then all together; the sorted path with all together.
ALONE = [(p, (k,)) for p in PROBLEMS for k in range(len(p.operands))]
TOGETHER = [(p, tuple(range(len(p.operands)))) for p in PROBLEMS if len(p.operands) > 1]
IN_ORDER = [(p, tuple(range(len(p.operands)))) for p in SORTED_PROBLEMS]
DIFFERENTIABLE = ALONE + TOGETHER + IN_ORDER


def named(parameter: Any) -> str:
    """Name a parameter in a test's id."""
    return ",".join(map(str, parameter)) if isinstance(parameter, tuple) else repr(parameter)


# --- functions to differentiate ------------------------------------------------------------------


def curved(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Put a function through a sine, so that derivatives of every order are there to compare."""
    return lambda *operands: jnp.sin(function(*operands))


def loss(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a curved function to a number that weighs each element of the value differently."""

    def weighed(*operands: Any) -> jax.Array:
        value = function(*operands)
        weights = jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
        return jnp.sum(weights * jnp.sin(value))

    return weighed


def directions(operands: tuple[np.ndarray, ...], seed: int = 1) -> tuple[np.ndarray, ...]:
    """Return random tangents of the operands."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=a.shape).astype(a.dtype) for a in operands)


def assert_close(actual: Any, expected: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Compare trees of arrays: structure, shapes, dtypes and values."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Compare trees of arrays bit for bit."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        assert a.tobytes() == e.tobytes()
