"""Reverse mode, and reverse over reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.helpers import (
    ALONE,
    CASES,
    DIFFERENTIABLE,
    PROBLEMS,
    SEGMENTS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    composed_dot,
    composed_matvec,
    composed_mean,
    composed_mul,
    composed_rms_norm,
    composed_sum,
    directions,
    loss,
    named,
    problem,
)


def grad_of_grad(f, argnums):
    """Differentiate the weighed gradient once more."""

    def weighed(*operands):
        return sum(loss(lambda g: g)(g) for g in jax.grad(f, argnums)(*operands))

    return jax.grad(weighed, argnums)


@pytest.mark.parametrize(("p", "argnums"), DIFFERENTIABLE, ids=named)
@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
def test_gradient_is_that_of_the_composition(transform, p, argnums, run):
    expected = transform(loss(p.composed), argnums)(*p.operands)
    assert_close(run(transform(loss(p.function), argnums))(*p.operands), expected)


@pytest.mark.parametrize(("p", "argnums"), ALONE, ids=named)
def test_gradient_is_the_slope_of_the_loop_over_rows(p, argnums):
    (k,) = argnums
    t = directions(p.operands)[k]
    weights = np.cos(np.arange(p.expected.size)).reshape(p.expected.shape)

    def along(h):
        moved = [a + h * t if i == k else a for i, a in enumerate(p.operands)]
        return np.sum(weights * p.case.oracle(*moved, p.idx, p.num_segments))

    slope = (along(1e-5) - along(-1e-5)) / 2e-5
    _, pull = jax.vjp(p.function, *p.operands)
    np.testing.assert_allclose(np.sum(pull(jnp.asarray(weights))[k] * t), slope, rtol=1e-8)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
def test_dropped_row_gets_exactly_zero_even_where_it_holds_nan(transform, p, run):
    operands = [
        np.where(np.expand_dims(p.valid, tuple(range(1, a.ndim))), a, np.nan)
        if len(a) == len(p.idx)
        else a
        for a in p.operands
    ]
    argnums = tuple(range(len(operands)))
    gradients = run(transform(loss(p.function), argnums))
    actual = gradients(*operands)
    assert_same_bits(actual, gradients(*p.operands))
    for gradient in actual:
        if len(gradient) == len(p.idx):
            np.testing.assert_array_equal(gradient[~p.valid], 0)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
def test_nan_reaches_no_gradient_of_another_segment(transform, p, run):
    argnums = tuple(range(len(p.operands)))
    poisoned = [a.copy() for a in p.operands]
    poisoned[0][np.argmax(p.idx == 3)] = np.nan
    gradients = run(transform(loss(p.function), argnums))
    for a, c in zip(gradients(*poisoned), gradients(*p.operands), strict=True):
        others = p.idx != 3 if len(a) == len(p.idx) else np.arange(p.num_segments) != 3
        assert_same_bits(a[others], c[others])
        assert np.isnan(a[~others]).any()


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
@pytest.mark.parametrize(("rows", "segments"), [(0, 3), (4, 0), (0, 0)])
def test_no_rows_or_no_segments_give_zero_gradients(transform, case, rows, segments):
    p = problem(case, np.zeros(rows, np.int32), segments)
    argnums = tuple(range(len(p.operands)))
    actual = transform(loss(p.function), argnums)(*p.operands)
    assert_same_bits(actual, tuple(np.zeros_like(a) for a in p.operands))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_empty_segment_gets_zero_gradient_and_spoils_none(case):
    p = problem(case, np.array([0, 0, 3, 3, 3], np.int32))
    argnums = tuple(range(len(p.operands)))
    for transform in (jax.grad, grad_of_grad):
        for gradient in transform(loss(p.function), argnums)(*p.operands):
            assert np.isfinite(gradient).all()
            if len(gradient) == SEGMENTS and case.broadcasts and gradient.shape != (5, 3):
                np.testing.assert_array_equal(gradient[np.array([1, 2, 4])], 0)


@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
def test_array_used_as_both_operands_gets_both_gradients(transform, run):
    p = PROBLEMS[4]
    x = p.operands[0]
    expected = transform(loss(lambda x: p.composed(x, x)), (0,))(x)
    assert_close(run(transform(loss(lambda x: p.function(x, x)), (0,)))(x), expected)


def radius_of_gyration(sum_, mean, dot, rms_norm, mul, matvec):
    """Return a chain of all six operations, each on the results of others."""

    def chain(x, w, m, idx, n):
        centre = mean(x, idx, n)
        moved = x - jnp.take(centre, jnp.clip(idx, 0, n - 1), axis=0)
        scaled = matvec(mul(moved, w, idx, n), m, idx, n)
        size = rms_norm(scaled, idx, n)
        return dot(scaled, mul(moved, size, idx, n), idx, n) + sum_(moved[:, 0] ** 2, idx, n)

    return chain


@pytest.mark.parametrize("transform", [jax.grad, grad_of_grad])
def test_chain_of_all_operations_has_the_gradient_of_the_composition(transform, run):
    names = ("sum", "mean", "dot", "rms_norm", "mul", "matvec")
    ours = radius_of_gyration(*(getattr(segops, f"segmented_{name}") for name in names))
    theirs = radius_of_gyration(
        composed_sum, composed_mean, composed_dot, composed_rms_norm, composed_mul, composed_matvec
    )
    idx = jnp.asarray(PROBLEMS[0].idx)
    x, m = PROBLEMS[7].operands
    operands = (x, PROBLEMS[6].operands[1], m)

    def of(chain):
        return transform(loss(lambda *u: chain(*u, idx, SEGMENTS)), (0, 1, 2))

    assert_close(run(of(ours))(*operands), of(theirs)(*operands), rtol=1e-9, atol=1e-10)
