"""Forward mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.library.helpers import (
    ALONE,
    CASES,
    DIFFERENTIABLE,
    PROBLEMS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    curved,
    directions,
    named,
    problem,
)


def along(f, operands, argnums, seed=1):
    """Return the operands chosen, their tangents, and `f` of them alone; the rest is constant."""
    tangents = directions(operands, seed)

    def of(*chosen):
        arguments = list(operands)
        for k, a in zip(argnums, chosen, strict=True):
            arguments[k] = a
        return f(*arguments)

    return of, tuple(operands[k] for k in argnums), tuple(tangents[k] for k in argnums)


def jvp(f, operands, argnums):
    of, chosen, tangents = along(f, operands, argnums)
    return jax.jvp(of, chosen, tangents)


def jvp_of_jvp(f, operands, argnums):
    of, chosen, tangents = along(f, operands, argnums)
    other = along(f, operands, argnums, seed=2)[2]
    return jax.jvp(lambda *u: jax.jvp(of, u, tangents)[1], chosen, other)


def linearized(f, operands, argnums):
    of, chosen, tangents = along(f, operands, argnums)
    value, linear = jax.linearize(of, *chosen)
    return value, linear(*tangents)


@pytest.mark.parametrize(("p", "argnums"), DIFFERENTIABLE, ids=named)
@pytest.mark.parametrize("transform", [jvp, jvp_of_jvp, linearized])
def test_tangent_is_that_of_the_composition(transform, p, argnums, run):
    expected = transform(curved(p.composed), p.operands, argnums)
    actual = run(lambda *u: transform(curved(p.function), u, argnums))(*p.operands)
    assert_close(actual, expected)


@pytest.mark.parametrize(("p", "argnums"), ALONE, ids=named)
def test_tangent_is_the_slope_of_the_loop_over_rows(p, argnums):
    of, (chosen,), (t,) = along(lambda *u: p.case.oracle(*u, p.idx, 5), p.operands, argnums)
    slope = (of(chosen + 1e-5 * t) - of(chosen - 1e-5 * t)) / 2e-5
    _, tangent = jvp(p.function, p.operands, argnums)
    np.testing.assert_allclose(tangent, slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_forward_and_reverse_mode_are_adjoint(p):
    tangents = directions(p.operands)
    value, tangent = jax.jvp(p.function, p.operands, tangents)
    (cotangent,) = directions((np.asarray(value),), seed=3)
    _, pull = jax.vjp(p.function, *p.operands)
    forward = np.sum(tangent * cotangent)
    reverse = sum(np.sum(ct * t) for ct, t in zip(pull(cotangent), tangents, strict=True))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_forward_mode_leaves_the_value_unchanged(p):
    value, _ = jax.jvp(p.function, p.operands, directions(p.operands))
    assert_same_bits(value, p.value)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_tangent_of_a_dropped_row_is_ignored_even_where_it_is_nan(p, run):
    tangents = directions(p.operands)
    poisoned = [t.copy() for t in tangents]
    poisoned[0][~p.valid] = np.nan
    pushed = run(lambda *t: jax.jvp(p.function, p.operands, t)[1])
    assert_same_bits(pushed(*poisoned), pushed(*tangents))


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize(("rows", "segments"), [(0, 3), (4, 0), (0, 0)])
def test_no_rows_or_no_segments_give_zero_tangents(case, rows, segments):
    p = problem(case, np.zeros(rows, np.int32), segments)
    _, tangent = jax.jvp(p.function, p.operands, directions(p.operands))
    assert_same_bits(tangent, np.zeros_like(p.expected))


def test_jvp_accepts_an_integer_id_operand_with_its_float0_tangent():
    p = PROBLEMS[0]
    (x,), idx = p.operands, jnp.asarray(p.idx)
    zero = np.zeros(idx.shape, jax.dtypes.float0)
    _, tangent = jax.jvp(lambda x, i: p.function(x, idx=i), (x, idx), (x, zero))
    assert_same_bits(tangent, p.value)


def test_tangent_of_ids_alone_is_zero():
    p = PROBLEMS[0]
    idx = jnp.asarray(p.idx)
    zero = np.zeros(idx.shape, jax.dtypes.float0)
    _, tangent = jax.jvp(lambda i: p.function(*p.operands, idx=i), (idx,), (zero,))
    assert_same_bits(tangent, np.zeros_like(p.expected))
