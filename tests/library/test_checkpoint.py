"""Operations under `jax.checkpoint`: recomputed, with unchanged derivatives."""

import jax
import pytest

from tests.library.helpers import (
    DIFFERENTIABLE,
    PROBLEMS,
    assert_close,
    assert_same_bits,
    directions,
    loss,
    named,
)

POLICIES = [None, jax.checkpoint_policies.everything_saveable]


@pytest.mark.parametrize(("p", "argnums"), DIFFERENTIABLE, ids=named)
def test_checkpoint_leaves_value_and_gradient_as_they_are(p, argnums, run):
    plain = jax.value_and_grad(loss(p.function), argnums)
    kept = jax.value_and_grad(loss(jax.checkpoint(p.function)), argnums)
    assert_close(run(kept)(*p.operands), plain(*p.operands), rtol=1e-13)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
@pytest.mark.parametrize("policy", POLICIES, ids=["nothing", "everything"])
def test_checkpoint_leaves_second_derivatives_as_they_are(p, policy, run):
    argnums = tuple(range(len(p.operands)))
    tangents = directions(p.operands)

    def product(function):
        gradient = jax.grad(loss(function), argnums)
        return lambda *u: jax.jvp(gradient, u, tangents)

    kept = jax.checkpoint(jax.checkpoint(p.function, policy=policy), policy=policy)
    assert_close(run(product(kept))(*p.operands), product(p.composed)(*p.operands))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_checkpoint_recomputes_in_the_backward_pass(p):
    def calls(function):
        return str(jax.make_jaxpr(jax.grad(function))(*p.operands)).count("= segops_")

    assert calls(jax.checkpoint(loss(p.function))) > calls(loss(p.function))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_checkpoint_under_vmap_gives_the_gradient_of_each_row(p):
    gradient = jax.grad(loss(jax.checkpoint(p.function)))
    first, *rest = p.operands
    batch = jax.numpy.stack([first, 2 * first])
    actual = jax.vmap(gradient, in_axes=(0, *[None] * len(rest)))(batch, *rest)
    assert_same_bits(actual[1], gradient(2 * first, *rest))
