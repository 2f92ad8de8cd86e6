"""`jax.linear_transpose` in each operand in which an operation is linear."""

import jax
import numpy as np
import pytest

from tests.library.helpers import (
    PROBLEMS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    directions,
    named,
)


def in_one(p, k):
    """Return the operation as a function of operand `k`."""
    return lambda a: p.function(*p.operands[:k], a, *p.operands[k + 1 :])


LINEAR = [
    (p, k) for p in PROBLEMS + SORTED_PROBLEMS if p.case.linear for k in range(len(p.operands))
]


def dense(p, k):
    """Return the matrix of the operation in operand `k`, column by column from the loop."""
    shape = p.operands[k].shape
    columns = []
    for unit in np.eye(p.operands[k].size):
        operands = [unit.reshape(shape) if i == k else a for i, a in enumerate(p.operands)]
        columns.append(p.case.oracle(*operands, p.idx, p.num_segments).ravel())
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("p", "k"), LINEAR, ids=named)
def test_transpose_is_the_transposed_matrix(p, k, run):
    transpose = jax.linear_transpose(in_one(p, k), p.operands[k])
    (cotangent,) = directions((p.expected,))
    (actual,) = run(transpose)(cotangent)
    expected = dense(p, k).T @ cotangent.ravel()
    assert_close(actual, expected.reshape(p.operands[k].shape))


@pytest.mark.parametrize(("p", "k"), LINEAR, ids=named)
def test_transpose_of_the_transpose_is_the_operation(p, k, run):
    operand = p.operands[k]
    transpose = jax.linear_transpose(in_one(p, k), operand)
    (back,) = (jax.linear_transpose(lambda ct: transpose(ct)[0], p.expected),)
    assert_same_bits(run(back)(operand), (in_one(p, k)(operand),))


@pytest.mark.parametrize(("p", "k"), [(p, k) for p, k in LINEAR if len(p.operands) == 2], ids=named)
def test_pull_back_can_be_transposed_in_the_operand_it_holds_fixed(p, k):
    (cotangent,) = directions((p.expected,))

    def pulled(function):
        def of_fixed(fixed):
            operands = [fixed, fixed]
            operands[k] = p.operands[k]
            return jax.vjp(function, *operands)[1](cotangent)[k]

        return of_fixed

    fixed = p.operands[1 - k]
    (tangent,) = directions((p.operands[k],), seed=5)
    actual = jax.linear_transpose(pulled(p.function), fixed)(tangent)
    assert_close(actual, jax.vjp(pulled(p.composed), fixed)[1](tangent))


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_tangent_map_can_be_transposed(p, run):
    (cotangent,) = directions((p.expected,))

    def pushed(*tangents):
        return jax.jvp(p.function, p.operands, tangents)[1]

    transpose = jax.linear_transpose(pushed, *p.operands)
    expected = jax.vjp(p.composed, *p.operands)[1](cotangent)
    assert_close(run(transpose)(cotangent), expected)
