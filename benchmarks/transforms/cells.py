"""The transforms that are tried, each a function of a subject that returns arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.transforms.subject import Operands, Subject, along, pushed

Transform = Callable[[Subject], Any]


def _grad_of_grad(s: Subject) -> Any:
    return jax.grad(along(s.loss, s.directions[0]))(s.operands)


def _third_reverse(s: Subject) -> Any:
    first, second, _ = s.directions
    return jax.grad(along(along(s.loss, first), second))(s.operands)


def _third_mixed(s: Subject) -> Any:
    first, second, _ = s.directions
    return pushed(jax.grad(pushed(s.loss, first)), second)(s.operands)


def _linear_transpose(s: Subject) -> Any:
    return [_transpose_in(s, position) for position in s.linear_operands]


def _transpose_in(s: Subject, position: int) -> Any:
    def linear(operand: Array) -> Array:
        return s.value((*s.operands[:position], operand, *s.operands[position + 1 :]))

    operand = s.operands[position]
    return jax.linear_transpose(linear, operand)(linear(operand))


def _vmap_first(s: Subject) -> Any:
    return jax.vmap(lambda first: s.value((first, *s.operands[1:])))(s.batch[0])


def _vmap_last_axis(s: Subject) -> Any:
    moved = jax.tree.map(lambda u: u.transpose(*range(1, u.ndim), 0), s.batch)
    return jax.vmap(s.value, in_axes=-1, out_axes=-1)(moved)


def _grad_of_vmap(s: Subject) -> Any:
    return jax.grad(lambda batch: jax.vmap(s.loss)(batch).sum())(s.batch)


def _scan(s: Subject) -> Any:
    def total(batch: Operands) -> tuple[Array, Array]:
        return jax.lax.scan(lambda sum_, u: (sum_ + s.loss(u), s.value(u)), jnp.zeros(()), batch)

    return jax.value_and_grad(total, has_aux=True)(s.batch)


def _while_loop(s: Subject) -> Any:
    def step(state: tuple[Array, Operands]) -> tuple[Array, Operands]:
        count, operands = state
        shift = s.value(operands).sum()
        return count + 1, jax.tree.map(lambda u: u + 0.1 * shift, operands)

    return jax.lax.while_loop(lambda state: state[0] < 3, step, (jnp.zeros((), int), s.operands))[1]


TRANSFORMS: Mapping[str, Transform] = {
    "value": lambda s: s.value(s.operands),
    "grad": lambda s: jax.grad(s.loss)(s.operands),
    "grad of grad": _grad_of_grad,
    "jvp": lambda s: jax.jvp(s.value, (s.operands,), (s.directions[0],)),
    "jacfwd": lambda s: jax.jacfwd(s.value)(s.operands),
    "jacrev": lambda s: jax.jacrev(s.value)(s.operands),
    "jacfwd(jacrev)": lambda s: jax.jacfwd(jax.jacrev(s.loss))(s.operands),
    "jacrev(jacrev)": lambda s: jax.jacrev(jax.jacrev(s.loss))(s.operands),
    "jacrev(jacfwd)": lambda s: jax.jacrev(jax.jacfwd(s.loss))(s.operands),
    "hessian": lambda s: jax.hessian(s.loss)(s.operands),
    "third order, reverse": _third_reverse,
    "third order, mixed": _third_mixed,
    "linear_transpose": _linear_transpose,
    "vmap over all operands": lambda s: jax.vmap(s.value)(s.batch),
    "vmap over the first": _vmap_first,
    "vmap at the last axis": _vmap_last_axis,
    "vmap over idx": lambda s: jax.vmap(s.value, (None, 0))(s.operands, s.batch_of_ids),
    "vmap over both": lambda s: jax.vmap(s.value)(s.batch, s.batch_of_ids),
    "vmap of grad": lambda s: jax.vmap(jax.grad(s.loss))(s.batch),
    "grad of vmap": _grad_of_vmap,
    "nested vmap": lambda s: jax.vmap(jax.vmap(s.value))(s.nested_batch),
    "scan, with grad": _scan,
    "while_loop": _while_loop,
    "checkpoint, with grad": lambda s: jax.grad(jax.checkpoint(s.loss))(s.operands),
}


def run(transform: str, subject: Subject, *, jit: bool) -> Any:
    """Return what a transform gives, staged out by ``jit`` as a whole or not at all."""
    staged = jax.jit(lambda: TRANSFORMS[transform](subject))
    return staged() if jit else TRANSFORMS[transform](subject)
