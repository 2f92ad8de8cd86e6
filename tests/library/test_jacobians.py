"""Whole Jacobians and Hessians: the forward and reverse modes under `vmap`, nested both ways."""

from functools import cache

import jax
import pytest

from tests.library.helpers import ALONE, DIFFERENTIABLE, assert_close, curved, named


def nested(*modes):
    def transform(f, argnums):
        for mode in reversed(modes):
            f = mode(f, argnums)
        return f

    transform.__name__ = "_of_".join(mode.__name__ for mode in modes)
    return transform


FIRST = [jax.jacfwd, jax.jacrev]
SECOND = [
    jax.hessian,
    nested(jax.jacrev, jax.jacrev),
    nested(jax.jacrev, jax.jacfwd),
    nested(jax.jacfwd, jax.jacfwd),
]


@cache
def expected(transform, p, argnums):
    """Return the derivative of the composition, once for all ways to reach the same array."""
    return jax.jit(transform(curved(p.composed), argnums))(*p.operands)


@pytest.mark.parametrize(("p", "argnums"), DIFFERENTIABLE, ids=named)
@pytest.mark.parametrize("transform", FIRST, ids=lambda t: t.__name__)
def test_jacobian_is_that_of_the_composition(transform, p, argnums, run):
    actual = run(transform(curved(p.function), argnums))(*p.operands)
    assert_close(actual, expected(jax.jacrev, p, argnums))


@pytest.mark.parametrize(("p", "argnums"), DIFFERENTIABLE, ids=named)
@pytest.mark.parametrize("transform", SECOND, ids=lambda t: t.__name__)
def test_second_derivative_is_that_of_the_composition(transform, p, argnums, run):
    actual = run(transform(curved(p.function), argnums))(*p.operands)
    assert_close(actual, expected(jax.hessian, p, argnums))


LINEAR = [(p, argnums) for p, argnums in ALONE if p.case.linear]


@pytest.mark.parametrize(("p", "argnums"), LINEAR, ids=named)
def test_hessian_in_a_linear_operand_alone_is_exactly_zero(p, argnums):
    assert not jax.hessian(p.function, *argnums)(*p.operands).any()
