"""`shard_map` over four devices: right values are easy, gradients of what is replicated are not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import segops
from tests.library.helpers import (
    CASES,
    assert_close,
    directions,
    loss,
    named,
    problem,
)

SHARDS = 4
# Three rows a shard: segments that span shards or lie in one or are empty, ids out of range.
IDS = np.array([3, -1, 0, 3, 5, 0, 1, 3, 2**31 - 1, 3, 0, -7], np.int32)
PROBLEMS = [problem(case, IDS) for case in CASES]
pytestmark = pytest.mark.usefixtures("mesh")


def specs(case):
    """Return where the operands lie: rows are split over the devices, segments on each of them."""
    return tuple(P("d") if shape[0] == "N" else P() for shape in case.shapes.values())


def per_shard(p):
    """Return the operation on a shard: a reduction is summed over the shards, rows stay apart."""

    def function(*arguments):
        out = p.case.op(*arguments, p.num_segments)
        return out if p.case.broadcasts else jax.lax.psum(out, "d")

    return function


def sharded(p, mesh, check_vma):
    mapped = jax.shard_map(
        per_shard(p),
        mesh=mesh,
        in_specs=(*specs(p.case), P("d")),
        out_specs=P("d") if p.case.broadcasts else P(),
        check_vma=check_vma,
    )
    return lambda *operands: mapped(*operands, jnp.asarray(p.idx))


def parts(p, operands):
    """Return the composition's value on the rows of each shard."""
    values = []
    for k in range(SHARDS):
        rows = slice(3 * k, 3 * k + 3)
        own = [
            a[rows] if spec == P("d") else a
            for a, spec in zip(operands, specs(p.case), strict=True)
        ]
        values.append(p.composed(*own, idx=p.idx[rows]))
    return values


def composed(p):
    """Return the same function without sharding."""
    join = jnp.concatenate if p.case.broadcasts else sum
    return lambda *operands: join(parts(p, operands))


both_checks = pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no-vma"])
every_problem = pytest.mark.parametrize("p", PROBLEMS, ids=named)


@every_problem
@both_checks
def test_psum_of_the_shards_is_the_value(p, mesh, check_vma, run):
    actual = run(sharded(p, mesh, check_vma))(*p.operands)
    assert_close(actual, composed(p)(*p.operands), rtol=1e-13)


@every_problem
@both_checks
def test_gradient_of_each_operand_is_summed_over_the_shards(p, mesh, check_vma, run):
    argnums = tuple(range(len(p.operands)))
    actual = run(jax.grad(loss(sharded(p, mesh, check_vma)), argnums))(*p.operands)
    expected = jax.grad(loss(composed(p)), argnums)(*p.operands)
    assert_close(actual, expected)


@every_problem
@both_checks
def test_tangent_crosses_the_shards(p, mesh, check_vma, run):
    tangents = directions(p.operands)
    actual = run(partial(jax.jvp, sharded(p, mesh, check_vma)))(p.operands, tangents)
    assert_close(actual, jax.jvp(composed(p), p.operands, tangents))


@every_problem
@both_checks
def test_hessian_vector_product_crosses_the_shards(p, mesh, check_vma):
    argnums = tuple(range(len(p.operands)))
    tangents = tuple(map(jnp.asarray, directions(p.operands)))

    def product(function):
        gradient = jax.grad(loss(function), argnums)
        return jax.jit(lambda *u: jax.jvp(gradient, u, tangents)[1])(*p.operands)

    assert_close(product(sharded(p, mesh, check_vma)), product(composed(p)))


@every_problem
def test_gradient_of_gradient_crosses_the_shards(p, mesh):
    argnums = tuple(range(len(p.operands)))

    def twice(function):
        def weighed(*u):
            return sum(loss(lambda g: g)(g) for g in jax.grad(loss(function), argnums)(*u))

        return jax.jit(jax.grad(weighed, argnums))(*p.operands)

    assert_close(twice(sharded(p, mesh, True)), twice(composed(p)))


@every_problem
def test_gradient_taken_inside_the_shards_is_summed_too(p, mesh):
    argnums = tuple(range(len(p.operands)))

    def gradients(*arguments):
        *operands, ids = arguments

        def total(*u):
            out = p.case.op(*u, ids, p.num_segments)
            return jax.lax.psum(jnp.sum(out * out), "d")

        return jax.grad(total, argnums)(*operands)

    mapped = jax.jit(
        jax.shard_map(
            gradients, mesh=mesh, in_specs=(*specs(p.case), P("d")), out_specs=specs(p.case)
        )
    )

    def expected(*operands):
        return sum(jnp.sum(part**2) for part in parts(p, operands))

    assert_close(mapped(*p.operands, p.idx), jax.grad(expected, argnums)(*p.operands))


@pytest.mark.parametrize("name", ["value_and_vjp", "hvp", "jvp"])
@pytest.mark.parametrize("p", [q for q in PROBLEMS if q.case.broadcasts], ids=named)
def test_derivatives_by_name_work_inside_the_shards(p, name, mesh):
    x, y = p.operands
    u, w = p.case.shapes
    tangents = dict(zip(p.case.shapes, directions(p.operands), strict=True))

    def shard(x, y, t_x, t_y, ids):
        arguments = (p.case.op, x, y, ids, p.num_segments)
        along = {"tangents": {u: t_x, w: t_y}}
        if name == "jvp":
            return segops.jvp(*arguments, **along), jnp.zeros_like(y)
        result = (
            segops.hvp(*arguments, **along)
            if name == "hvp"
            else segops.value_and_vjp(*arguments)[1]
        )
        return result[u], result[w]

    rows, whole = specs(p.case)
    mapped = jax.shard_map(
        shard, mesh=mesh, in_specs=(rows, whole, rows, whole, P("d")), out_specs=(rows, whole)
    )
    actual = jax.jit(mapped)(x, y, tangents[u], tangents[w], p.idx)
    arguments = (p.case.op, x, y, p.idx, p.num_segments)
    expected = {
        "jvp": lambda: (segops.jvp(*arguments, tangents=tangents), jnp.zeros_like(y)),
        "hvp": lambda: tuple(segops.hvp(*arguments, tangents=tangents).values()),
        "value_and_vjp": lambda: tuple(segops.value_and_vjp(*arguments)[1].values()),
    }[name]()
    assert_close(actual, expected)


@every_problem
def test_vmap_inside_the_shards(p, mesh):
    def batched(*arguments):
        first, *rest = arguments
        return jax.vmap(lambda a: per_shard(p)(a, *rest))(jnp.stack([first, 2 * first]))

    out = P(None, "d") if p.case.broadcasts else P()
    mapped = jax.shard_map(batched, mesh=mesh, in_specs=(*specs(p.case), P("d")), out_specs=out)
    actual = jax.jit(mapped)(*p.operands, p.idx)
    first, *rest = p.operands
    expected = jnp.stack([composed(p)(first, *rest), composed(p)(2 * first, *rest)])
    assert_close(actual, expected, rtol=1e-12)


def test_segments_that_span_shards_from_a_public_report(mesh):
    ids, x = np.array([0, 0, 1, 1, 1, 2, 2, 3]), np.arange(8.0)

    def f(x):
        part = jax.shard_map(
            lambda x, i: jax.lax.psum(segops.segmented_sum(x, i, 4), "d"),
            mesh=mesh,
            in_specs=P("d"),
            out_specs=P(),
        )
        return part(x, jnp.asarray(ids))

    np.testing.assert_array_equal(f(x), [1, 9, 11, 7])
    gradient = jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)
    np.testing.assert_array_equal(gradient, [2, 2, 18, 18, 18, 22, 22, 14])
