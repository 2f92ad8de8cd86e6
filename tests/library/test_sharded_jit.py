"""Rows sharded over devices under plain `jax.jit`: each device reduces its own rows."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import segops
from tests.library.helpers import CASES, assert_close, directions, loss, named, problem

# Segments that span devices, lie on one or are empty; ids out of range.
IDS = np.array([3, -1, 0, 3, 5, 0, 1, 3, 2**31 - 1, 3, 0, -7], np.int32)
PROBLEMS = [problem(case, IDS, ordered=ordered) for case in CASES for ordered in (False, True)]

every_problem = pytest.mark.parametrize("p", PROBLEMS, ids=named)


def place(p, mesh):
    """Put rows and ids in parts on the devices, and segments whole on each."""
    specs = [P("d") if shape[0] == "N" else P() for shape in p.case.shapes.values()]
    return tuple(
        jax.device_put(a, NamedSharding(mesh, spec))
        for a, spec in zip((*p.operands, p.idx), (*specs, P("d")), strict=True)
    )


def quantities(p):
    """Return value, gradient and Hessian-vector product as functions of the operands and ids."""
    argnums = tuple(range(len(p.operands)))

    def gradient(function, idx):
        return jax.grad(loss(lambda *u: function(*u, idx=idx)), argnums)

    def value(function):
        return lambda *a: function(*a[:-1], idx=a[-1])

    def grad(function):
        return lambda *a: gradient(function, a[-1])(*a[:-1])

    def hvp(function):
        along = directions(p.operands)
        return lambda *a: jax.jvp(gradient(function, a[-1]), a[:-1], along)[1]

    return {"value": value, "grad": grad, "hvp": hvp}


@every_problem
@pytest.mark.parametrize("quantity", ["value", "grad", "hvp"])
def test_result_is_that_of_rows_on_one_device_and_rows_are_not_gathered(p, quantity, mesh):
    of = quantities(p)[quantity]
    placed = place(p, mesh)
    compiled = jax.jit(of(p.function)).lower(*placed).compile()
    assert_close(compiled(*placed), of(p.composed)(*map(jnp.asarray, (*p.operands, p.idx))))
    assert not re.search(r"all-gather|all-to-all|collective-permute", compiled.as_text())


@pytest.mark.parametrize("p", [q for q in PROBLEMS if not q.case.broadcasts], ids=named)
def test_reduction_crosses_the_devices_a_fixed_number_of_times(p, mesh):
    placed = place(p, mesh)
    compiled = jax.jit(quantities(p)["value"](p.function)).lower(*placed).compile()
    # A mean also sums the counts; a root finds the largest part first, to stay in range.
    reductions = {"mean-scalar": 2, "mean-vec3": 2, "rms_norm": 3}.get(p.case.name, 1)
    assert len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text())) <= reductions


@pytest.mark.parametrize("p", [q for q in PROBLEMS if q.case.broadcasts], ids=named)
def test_broadcast_leaves_its_rows_where_they_lie(p, mesh):
    out = jax.jit(quantities(p)["value"](p.function))(*place(p, mesh))
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("d")), out.ndim)


@every_problem
def test_batch_sharded_over_devices_stays_there(p, mesh):
    first, *rest = p.operands
    batch = jax.device_put(np.stack([first] * 4), NamedSharding(mesh, P("d")))
    batched = jax.jit(jax.vmap(lambda a: p.function(a, *rest)))
    compiled = batched.lower(batch).compile()
    assert_close(compiled(batch), jnp.stack([p.composed(*p.operands)] * 4))
    assert "all-gather" not in compiled.as_text()


@every_problem
def test_rows_that_do_not_divide_among_the_devices_are_still_right(p, mesh):
    short = problem(p.case, IDS[:-1], ordered=p.indices_are_sorted)

    def sharded_inside(*arguments):
        *operands, idx = arguments
        uneven = jax.lax.with_sharding_constraint(idx, NamedSharding(mesh, P("d")))
        return short.function(*operands, idx=uneven)

    actual = jax.jit(sharded_inside)(*short.operands, short.idx)
    assert_close(actual, short.composed(*short.operands))


@every_problem
@pytest.mark.parametrize("quantity", ["value", "grad"])
def test_mesh_with_explicit_axes(p, quantity, mesh):
    explicit = Mesh(mesh.devices, ("d",), axis_types=(AxisType.Explicit,))
    of = quantities(p)[quantity]
    with jax.set_mesh(explicit):
        actual = jax.jit(of(p.function))(*place(p, explicit))
        actual = jax.tree.map(np.asarray, actual)
    expected = of(p.composed)(*map(jnp.asarray, (*p.operands, p.idx)))
    assert_close(actual, jax.tree.map(np.asarray, expected))


@pytest.mark.parametrize("largest", [3e38, 1e-20])
def test_parts_of_a_mean_and_a_root_stay_in_range(largest, mesh):
    x = jax.device_put(np.full((8, 3), largest, np.float32), NamedSharding(mesh, P("d")))
    idx = jax.device_put(np.zeros(8, np.int32), NamedSharding(mesh, P("d")))
    mean = jax.jit(lambda x, idx: segops.segmented_mean(x, idx, 1))(x, idx)
    np.testing.assert_allclose(mean[0], np.float32(largest), rtol=1e-6)
    root = jax.jit(lambda x, idx: segops.segmented_rms_norm(x[:, :3] / 2, idx, 1))(x, idx)
    np.testing.assert_allclose(root[0], np.sqrt(3) * largest / 2, rtol=1e-6)
