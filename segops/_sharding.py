"""Rows sharded over a mesh under plain `jax.jit`: local work, one reduction, no gather of rows.

A lowering is wrapped in `jax.experimental.custom_partitioning`. Rows, ids and the batch stay
sharded as they come; segments are replicated. Each shard reduces its own rows and `combine` adds
the parts. (Inside `jax.shard_map`, or on one device, the lowering runs as it is.)
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Array = jax.Array
Axes = tuple[str, ...]

ROWS = "n"


def batch_size(*operands: Any) -> int:
    """Return the length of the batch axis; an operand of length one is shared."""
    return next((a.shape[0] for a in operands if a.shape[0] != 1), 1)


def partitioned(rule: Callable[..., Array], dims: str) -> Callable[..., Array]:
    """Return ``rule(*operands, axes=..., **params)`` made to follow the sharding of its operands.

    ``dims`` names the second axis of each operand and of the result, such as ``"(ns)*n->n"``:
    ``n`` for rows, ``s`` for segments, parentheses for what repeats to match the operands.
    ``axes`` tells the rule over which mesh axes its rows are sharded.
    """
    inputs, result = dims.split("->")
    pair, _, last = inputs.removeprefix("(").rpartition(")*")

    def run(*operands: Array, **params: Any) -> Array:
        sources = pair * ((len(operands) - len(last)) // 2) + last
        local = partial(rule, **params)
        call = custom_partitioning(lambda *whole: local(*whole, axes=()))
        call.def_partition(
            partition=partial(_partition, local, sources, result),
            sharding_rule=_factors(sources, result, operands),
        )
        return call(*operands)

    return run


def _partition(
    local: Callable[..., Array],
    sources: str,
    result: str,
    mesh: Mesh,
    operands: Sequence[Any],
    out: Any,
) -> tuple[Mesh, Callable[..., Array], NamedSharding, tuple[NamedSharding, ...]]:
    if mesh.empty:
        mesh = _flat_mesh(operands)
    batch = _sharded(operands, 0, mesh)
    labelled = [a for a, dim in zip(operands, sources, strict=True) if dim == ROWS]
    rows = tuple(axis for axis in _sharded(labelled, 1, mesh) if axis not in batch)

    def sharding(a: Any, dim: str) -> NamedSharding:
        first = batch if a.shape[0] != 1 else ()
        second = rows if dim == ROWS else ()
        return NamedSharding(mesh, PartitionSpec(first or None, second or None))

    arguments = tuple(sharding(a, dim) for a, dim in zip(operands, sources, strict=True))

    def shard(*parts: Array) -> Array:
        # A shard is by itself: a mesh with explicit axes would have its types checked inside.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return local(*parts, axes=rows)

    return mesh, shard, sharding(out, result), arguments


def _sharded(operands: Sequence[Any], dim: int, mesh: Mesh) -> Axes:
    """Return the mesh axes that split a dimension evenly, after the first operand that is split."""
    for a in operands:
        specs = getattr(a.sharding, "spec", ())
        spec = specs[dim] if len(specs) > dim else None
        axes = (spec,) if isinstance(spec, str) else tuple(spec or ())
        if axes and a.shape[dim] % _size(mesh, axes) == 0:
            return axes
    return ()


def _flat_mesh(operands: Sequence[Any]) -> Mesh:
    """Return a mesh of the devices, for a computation that has none: all is replicated."""
    devices = sorted(operands[0].sharding.device_set, key=lambda device: device.id)
    return Mesh(devices, ("devices",))


def _size(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _factors(sources: str, result: str, operands: Sequence[Array]) -> str:
    """Return the rule that shardings follow: batch and rows are common, all else is by itself."""
    batch = batch_size(*operands)

    def named(k: int, dim: str, length: int, ndim: int) -> str:
        first = "b" if length == batch else f"b{k}"
        return " ".join([first, dim, f"w{k}"][:ndim])

    factors = [
        named(k, dim, a.shape[0], a.ndim)
        for k, (dim, a) in enumerate(zip(sources, operands, strict=True))
    ]
    return f"{', '.join(factors)} -> {named(len(factors), result, batch, 3)}"


def combine(finish: str, part: Array, count: Callable[[], Array], axes: Axes) -> Array:
    """Combine the shards' sums, or means and roots weighted by their rows, without overflow."""
    if not axes:
        return part
    if finish == "sum":
        return jax.lax.psum(part, axes)
    rows = count()[:, :, None]
    share = rows.astype(part.dtype) / jnp.maximum(jax.lax.psum(rows, axes), 1).astype(part.dtype)
    if finish == "mean":
        return jax.lax.psum(share * part, axes)
    largest = jax.lax.pmax(part, axes)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return scale * jnp.sqrt(jax.lax.psum(share * jnp.square(part / scale), axes))
