"""Operations inside `scan`, `fori_loop`, `while_loop`, `cond`, `switch` and `map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.library.helpers import (
    PROBLEMS,
    assert_close,
    assert_same_bits,
    directions,
    loss,
    named,
)

STEPS = 3


def steps_of(p):
    """Return operands stacked for the steps of a loop, and ids that differ from step to step."""
    operands = tuple(np.stack([a, -2 * a, a + 1]) for a in p.operands)
    return operands, np.stack([p.idx, p.idx[::-1], np.roll(p.idx, 1)])


def scanned(function, idx):
    """Return a function of stacked operands that carries a number from step to step."""

    def run_steps(*operands):
        def step(carry, slices):
            *rows, ids = slices
            value = jnp.sin(function(rows[0] * carry, *rows[1:], idx=ids))
            return 1 + jnp.sum(value) / value.size, value

        start = jnp.ones((), operands[0].dtype)
        return jax.lax.scan(step, start, (*operands, jnp.asarray(idx)))

    return run_steps


def unrolled(function, idx):
    def run_steps(*operands):
        carry, values = jnp.ones((), operands[0].dtype), []
        for *rows, ids in zip(*operands, idx, strict=True):
            value = jnp.sin(function(rows[0] * carry, *rows[1:], idx=ids))
            carry = 1 + jnp.sum(value) / value.size
            values.append(value)
        return carry, jnp.stack(values)

    return run_steps


def last(function):
    return lambda *operands: function(*operands)[0]


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_scan_carries_values(p, run):
    operands, idx = steps_of(p)
    expected = unrolled(p.composed, idx)(*map(jnp.asarray, operands))
    assert_close(run(scanned(p.function, idx))(*operands), expected)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
def test_gradient_flows_through_scan(p, mode, run):
    operands, idx = steps_of(p)
    argnums = tuple(range(len(operands)))
    expected = jax.jit(jax.grad(last(unrolled(p.composed, idx)), argnums))(*operands)
    assert_close(run(mode(last(scanned(p.function, idx)), argnums))(*operands), expected)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_second_derivative_flows_through_scan(p):
    operands, idx = steps_of(p)
    tangents = directions(operands)
    argnums = tuple(range(len(operands)))

    def product(function):
        gradient = jax.grad(last(function), argnums)
        return jax.jit(lambda *u: jax.jvp(gradient, u, tangents)[1])(*operands)

    actual, expected = product(scanned(p.function, idx)), product(unrolled(p.composed, idx))
    assert_close(actual, expected, rtol=1e-9)


def grown(function, operands):
    """Return the first operand after steps that add to it the gradient of a loss."""
    first, *rest = operands
    return first + 0.1 * jax.grad(loss(function))(first, *rest)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
@pytest.mark.parametrize("loop", ["fori", "while"])
def test_loops_of_gradient_steps_agree_with_plain_python(p, loop, run):
    first, *rest = p.operands

    def looped(first):
        if loop == "fori":
            return jax.lax.fori_loop(
                0, STEPS, lambda _, a: grown(p.function, (a, *rest)), jnp.asarray(first)
            )
        state = (jnp.zeros((), jnp.int32), jnp.asarray(first))
        return jax.lax.while_loop(
            lambda s: s[0] < STEPS, lambda s: (s[0] + 1, grown(p.function, (s[1], *rest))), state
        )[1]

    expected = jnp.asarray(first)
    for _ in range(STEPS):
        expected = grown(p.composed, (expected, *rest))
    assert_close(run(looped)(first), expected)


def until_large(function):
    """Return a `while_loop` of a length that depends on the values."""

    def looped(*operands):
        def body(state):
            total, first = state
            return total + jnp.sum(function(first, *operands[1:]) ** 2), 1.5 * first

        start = (jnp.zeros(()), jnp.asarray(operands[0]))
        return jax.lax.while_loop(lambda s: s[0] < 100, body, start)

    return looped


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_while_loop_on_values_and_its_tangent(p, run):
    tangents = directions(p.operands)
    expected = jax.jvp(until_large(p.composed), p.operands, tangents)
    actual = run(lambda *t: jax.jvp(until_large(p.function), p.operands, t))(*tangents)
    assert_close(actual, expected)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
@pytest.mark.parametrize("flag", [True, False])
def test_cond_takes_one_branch_in_value_and_gradient(p, flag, run):
    argnums = tuple(range(len(p.operands)))

    def chosen(*operands):
        condition = jnp.sum(jnp.asarray(operands[0])) > (-1e9 if flag else 1e9)
        return jax.lax.cond(condition, loss(p.function), lambda *_: jnp.zeros(()), *operands)

    actual = run(jax.value_and_grad(chosen, argnums))(*p.operands)
    taken = jax.value_and_grad(loss(p.composed), argnums)(*p.operands)
    assert_close(actual, taken if flag else jax.tree.map(jnp.zeros_like, taken))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_map_and_switch_take_each_row_of_ids(p, run):
    operands, idx = steps_of(p)
    expected = jnp.stack([p.function(*(a[k] for a in operands), idx=idx[k]) for k in range(STEPS)])
    mapped = run(lambda *u: jax.lax.map(lambda s: p.function(*s[:-1], idx=s[-1]), u))
    assert_same_bits(mapped(*operands, idx), expected)
    branches = [lambda *u, k=k: p.function(*u, idx=idx[k]) for k in range(STEPS)]
    switched = run(lambda k, *u: jax.lax.switch(k, branches, *u))
    for k in range(STEPS):
        assert_same_bits(switched(k, *(a[k] for a in operands)), expected[k])
