"""One op of one library on a small float64 input, as the transforms see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.problems import operand_shapes
from benchmarks.transforms.dense import SEGMENTS

Operands = tuple[Array, ...]

# Sorted, since the peer's documentation asks for that; the last of them leaves a segment empty.
IDS = np.array([[0, 0, 1, 2, 2, 2, 3], [0, 1, 1, 1, 2, 3, 3], [0, 0, 0, 1, 3, 3, 3]], np.int32)
ROWS = IDS.shape[1]
BATCH = len(IDS)


@dataclass(frozen=True)
class Subject:
    """An op called as ``op(*operands, idx)``, with its operands, ids and directions."""

    name: str
    op: Callable[..., Array]

    @property
    def operands(self) -> Operands:
        """The point at which everything is evaluated."""
        return self._draw(0)

    @property
    def directions(self) -> tuple[Operands, ...]:
        """Three tangents of the operands."""
        return self._draw(1), self._draw(2), self._draw(3)

    @property
    def batch(self) -> Operands:
        """Operands with a leading batch axis."""
        return self._draw(4, (BATCH,))

    @property
    def nested_batch(self) -> Operands:
        """Operands with two leading batch axes."""
        return self._draw(5, (2, BATCH))

    @property
    def idx(self) -> Array:
        """Ids that leave a segment empty."""
        return jnp.asarray(IDS[-1])

    @property
    def batch_of_ids(self) -> Array:
        """Ids with a leading batch axis."""
        return jnp.asarray(IDS)

    @property
    def linear_operands(self) -> range:
        """Positions of the operands in which the op is linear."""
        return range(0 if self.name == "rms_norm" else len(self.operands))

    def value(self, operands: Operands, idx: Array | None = None) -> Array:
        """Return the op's output."""
        return self.op(*operands, self.idx if idx is None else idx)

    def loss(self, operands: Operands, idx: Array | None = None) -> Array:
        """Return a number whose derivatives of every order differ from zero."""
        out = self.value(operands, idx)
        weights = jnp.arange(1.0, out.size + 1).reshape(out.shape) / out.size
        return jnp.sum(weights * jnp.sin(out))

    def _draw(self, seed: int, lead: tuple[int, ...] = ()) -> Operands:
        rng = np.random.default_rng(seed)
        shapes = operand_shapes(self.name, ROWS, SEGMENTS)
        return tuple(jnp.asarray(rng.standard_normal(lead + shape)) for shape in shapes)


def along(function: Callable[[Operands], Array], tangents: Operands) -> Callable[[Operands], Array]:
    """Return the derivative of a scalar function along tangents, in reverse mode."""

    def slope(operands: Operands) -> Array:
        gradients = jax.grad(function)(operands)
        return sum(map(jnp.vdot, tangents, gradients), jnp.zeros(()))

    return slope


def pushed(function: Callable[[Operands], Any], tangents: Operands) -> Callable[[Operands], Any]:
    """Return the derivative of a function along tangents, in forward mode."""
    return lambda operands: jax.jvp(function, (operands,), (tangents,))[1]
