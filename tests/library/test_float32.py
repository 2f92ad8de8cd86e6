"""float32, and JAX as most people run it: without x64."""

import jax
import numpy as np
import pytest

import segops
from tests.library.helpers import (
    PROBLEMS,
    SORTED_PROBLEMS,
    assert_same_bits,
    directions,
    named,
)

every_problem = pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)


def all_derivatives(p, dtype):
    """Return value, pull-back, tangent and Hessian-vector product in one dtype."""
    p = p.astype(dtype)
    call = (p.case.op, *p.operands, p.idx, p.num_segments)
    order = {"indices_are_sorted": p.indices_are_sorted}
    tangents = dict(zip(p.case.shapes, directions(p.operands), strict=True))
    (ct,) = directions((p.expected.astype(dtype),), seed=3)
    return (
        segops.value_and_vjp(*call, cotangent=ct, **order),
        segops.jvp(*call, tangents=tangents, **order),
        segops.hvp(*call, tangents=tangents, cotangent=ct, **order),
    )


@every_problem
def test_float32_derivatives_are_float32_and_near_those_in_float64(p):
    narrow = jax.tree.leaves(all_derivatives(p, np.float32))
    wide = jax.tree.leaves(all_derivatives(p, np.float64))
    for n, w in zip(narrow, wide, strict=True):
        assert n.dtype == np.float32
        np.testing.assert_allclose(n, w, rtol=3e-6, atol=1e-6)


@every_problem
def test_float32_results_have_the_same_bits_with_and_without_x64(p):
    with_x64 = jax.tree.map(np.asarray, all_derivatives(p, np.float32))
    with jax.enable_x64(False):
        without = jax.tree.map(np.asarray, all_derivatives(p, np.float32))
    assert_same_bits(without, with_x64)


@every_problem
def test_float64_input_without_x64_becomes_float32(p):
    narrow = p.astype(np.float32)
    with jax.enable_x64(False):
        assert_same_bits(p.value, narrow.value)
        tangents = dict(zip(p.case.shapes, p.operands, strict=True))
        call = (p.case.op, *p.operands, p.idx, p.num_segments)
        assert segops.jvp(*call, tangents=tangents).dtype == np.float32
        assert segops.value_and_vjp(*call, cotangent=p.expected)[0].dtype == np.float32
