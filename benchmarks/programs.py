"""The quantities that are timed, as jitted programs of one signature.

The loss is the sum of squares of the op's output, and derivatives are taken in every operand.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.libraries import Library
from benchmarks.problems import Problem

Operands = tuple[jax.Array, ...]
Program = Callable[[Operands, Operands, jax.Array], Any]
"""A program called as ``program(operands, tangents, idx)``."""

QUANTITIES = ("value", "vjp", "hvp")


def build(library: Library, problem: Problem, quantity: str) -> Program:
    """Return the jitted program for a quantity, in the best mode the library supports."""
    op = library.ops[problem.op]
    product = _forward_over_reverse if library.forward_mode else _reverse_over_reverse

    def value(operands: Operands, idx: jax.Array) -> jax.Array:
        return op(*operands, idx, problem.num_segments, is_sorted=problem.is_sorted)

    def loss(operands: Operands, idx: jax.Array) -> jax.Array:
        return jnp.sum(value(operands, idx) ** 2)

    def run(operands: Operands, tangents: Operands, idx: jax.Array) -> Any:
        match quantity:
            case "value":
                return value(operands, idx)
            case "vjp":
                return jax.grad(loss)(operands, idx)
            case "hvp":
                return product(lambda u: loss(u, idx), operands, tangents)
        raise ValueError(quantity)

    return jax.jit(run)


def _forward_over_reverse(
    loss: Callable[[Operands], jax.Array], operands: Operands, tangents: Operands
) -> Operands:
    product: Operands = jax.jvp(jax.grad(loss), (operands,), (tangents,))[1]
    return product


def _reverse_over_reverse(
    loss: Callable[[Operands], jax.Array], operands: Operands, tangents: Operands
) -> Operands:
    def along(u: Operands) -> jax.Array:
        slopes = jax.grad(loss)(u)
        return sum((jnp.vdot(t, g) for t, g in zip(tangents, slopes, strict=True)), jnp.zeros(()))

    product: Operands = jax.grad(along)(operands)
    return product
