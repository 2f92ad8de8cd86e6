"""Second and third order by every mix of forward and reverse mode."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.library.helpers import (
    PROBLEMS,
    SORTED_PROBLEMS,
    TOGETHER,
    assert_close,
    curved,
    directions,
    loss,
    named,
)


def forward(f, operands, seed):
    """Return the function that maps operands to the tangent of `f` along a fixed direction."""
    tangents = directions(operands, seed)
    return lambda *u: jax.jvp(f, u, tangents)[1]


def reverse(f, operands, seed):
    """Return the function that maps operands to the pull-back of a fixed cotangent."""
    leaves, tree = jax.tree.flatten(jax.eval_shape(f, *operands))
    zeros = tuple(np.zeros(a.shape, a.dtype) for a in leaves)
    cotangents = tree.unflatten(directions(zeros, seed))
    return lambda *u: jax.vjp(f, *u)[1](cotangents)


def mixed(modes, f, operands):
    """Apply the modes from the last to the first, each along a direction of its own."""
    for seed, mode in enumerate(reversed(modes)):
        f = (forward if mode == "f" else reverse)(f, operands, seed)
    return f


ORDERS = ["".join(modes) for order in (2, 3) for modes in product("fr", repeat=order)]


@cache
def expected(p, modes):
    """Return the derivative of the composition, once for the eager and the compiled run."""
    return mixed(modes, curved(p.composed), p.operands)(*p.operands)


@pytest.mark.parametrize("modes", ORDERS)
@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_mixed_modes_give_the_derivative_of_the_composition(p, modes, run):
    actual = run(mixed(modes, curved(p.function), p.operands))(*p.operands)
    assert_close(actual, expected(p, modes), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("modes", ["fff", "frr", "rrr"])
@pytest.mark.parametrize("p", SORTED_PROBLEMS, ids=named)
def test_promise_of_order_holds_to_the_third_derivative(p, modes):
    actual = jax.jit(mixed(modes, curved(p.function), p.operands))(*p.operands)
    assert_close(actual, expected(p, modes), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("p", "argnums"), [*TOGETHER, (PROBLEMS[5], (0,))], ids=named)
def test_whole_third_derivative_is_symmetric(p, argnums):
    whole = jax.jit(jax.jacfwd(jax.hessian(loss(p.function), argnums), argnums))(*p.operands)
    for i, j, k in product(argnums, repeat=3):
        a, b, c = (p.operands[n].ndim for n in (i, j, k))
        axes = (*range(a + b, a + b + c), *range(a), *range(a, a + b))
        assert_close(jnp.transpose(whole[i][j][k], axes), whole[k][i][j], atol=1e-11)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_finite_differences_confirm_three_orders_in_both_modes(p):
    check_grads(curved(p.function), p.operands, order=3, modes=("fwd", "rev"))


@pytest.mark.parametrize("modes", ORDERS)
def test_derivatives_of_a_zero_norm_are_zero(modes, run):
    p = PROBLEMS[5]
    rows = (p.operands[0] * (p.idx == 3)[:, None],)
    derivative = run(mixed(modes, p.function, rows))(*rows)
    spoiled = [jnp.isnan(leaf).any() for leaf in jax.tree.leaves(derivative)]
    assert not any(spoiled)
    for leaf in jax.tree.leaves(derivative):
        others = p.idx != 3 if len(leaf) == len(p.idx) else jnp.arange(p.num_segments) != 3
        assert not leaf[others].any()


def test_no_nan_is_formed_on_the_way_at_a_zero_norm():
    p = PROBLEMS[5]
    rows = np.zeros_like(p.operands[0])
    with jax.debug_nans(True):
        assert not jax.jit(jax.jacrev(jax.hessian(p.function)))(rows).any()
