"""Warp launchers as lowerings of the primitives; what depends on a version of JAX or Warp.

Each lowering is a function of JAX arrays that calls a launcher through :func:`warp.jax_callable`.
The kernels read and write XLA's own buffers where they lie; scratch memory is one more output.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import warp as wp
from jax._src import dispatch
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from segops._kernels import broadcast, count, reduce
from segops._sharding import Axes, batch_size, combine, partitioned

Array = jax.Array


def reduce_rows(
    kind: str,
    rows: Sequence[Array],
    idx: Array,
    *,
    num_segments: int,
    indices_are_sorted: bool,
    platform: str,
    axes: Axes,
) -> Array:
    """Lower a reduction; ids in any order are scattered on the CPU and sorted first on CUDA."""
    finish = reduce.REDUCTIONS[kind].finish
    if platform == "cpu" and not indices_are_sorted:
        part = _scatter(kind, rows, idx, num_segments)
    elif indices_are_sorted:
        part = _runs(kind, rows, idx, jnp.zeros((1, 0), jnp.int32), num_segments)
    else:
        part = _runs(kind, rows, *_sorted(idx), num_segments)
    counted = partial(count_rows, idx, num_segments, indices_are_sorted)
    return combine(finish, part, counted, axes)


def _runs(kind: str, rows: Sequence[Array], idx: Array, order: Array, num_segments: int) -> Array:
    out = (batch_size(*rows, idx), num_segments, len(reduce.REDUCTIONS[kind].terms))
    launch = reduce.launch_runs[kind, str(rows[0].dtype)]
    (result,) = _call(launch, {"out": out}, *_five(rows), idx, order)
    return result


def _scatter(kind: str, rows: Sequence[Array], idx: Array, num_segments: int) -> Array:
    case = (kind, str(rows[0].dtype))
    segments = (batch_size(*rows, idx), num_segments)
    dims = {
        "out": (*segments, len(reduce.REDUCTIONS[kind].terms)),
        "scratch": (*segments, reduce.scratch_words(*case)),
    }
    result, _ = _call(reduce.launch_scatter[case], dims, *_five(rows), idx)
    return result


def _sorted(idx: Array) -> tuple[Array, Array]:
    places = jax.lax.broadcasted_iota(jnp.int32, idx.shape, 1)
    ids, order = jax.lax.sort((idx, places), dimension=1, is_stable=True, num_keys=1)
    return ids, order


def broadcast_rows(kind: str, rows: Sequence[Array], idx: Array) -> Array:
    """Lower a broadcast."""
    out = (batch_size(*rows, idx), idx.shape[1], broadcast.BROADCASTS[kind].width)
    launch = broadcast.launch_broadcast[kind, str(rows[0].dtype)]
    (result,) = _call(launch, {"out": out}, *_five(rows), idx)
    return result


def count_rows(idx: Array, num_segments: int, indices_are_sorted: bool, axes: Axes = ()) -> Array:
    """Lower the count of each segment's rows."""
    launch = count.launch_runs if indices_are_sorted else count.launch_scatter
    (result,) = _call(launch, {"out": (idx.shape[0], num_segments)}, idx)
    return jax.lax.psum(result, axes) if axes else result


def _five(rows: Sequence[Array]) -> list[Array]:
    """Fill up x, y, p, q, r: a pair or a divisor that a kernel does not use is any array."""
    pairs, divisor = rows[: len(rows) // 2 * 2], rows[len(rows) // 2 * 2 :]
    x, y, *more = pairs or (*divisor, *divisor)
    return [x, y, *(more or (x, y)), *(divisor or (y,))]


def register(primitive: Any, rule: Callable[..., Array], dims: str) -> None:
    """Register ``rule(*operands, platform=..., axes=..., **params)`` on each platform of Warp.

    ``dims`` is as in `segops._sharding.partitioned`. Outside of `jax.jit` the same rule runs.
    """
    primitive.def_impl(partial(dispatch.apply_primitive, primitive))
    # The partitioner needs the devices, which JAX leaves out of a lowering unless it is told.
    dispatch.prim_requires_devices_during_lowering.add(primitive)
    for platform in ("cpu", "cuda"):
        run = partitioned(partial(rule, platform=platform), dims)
        mlir.register_lowering(
            primitive, mlir.lower_fun(run, multiple_results=False), platform=platform
        )


def result_aval(operands: Sequence[Any], shape: tuple[int, ...], rows: bool) -> Any:
    """Return the abstract result: the first operand's dtype, and rows sharded as the ids are."""
    first, idx = operands[0], operands[-1]
    mesh = next((a.sharding.mesh for a in operands if not a.sharding.mesh.empty), idx.sharding.mesh)
    spec = PartitionSpec(None, idx.sharding.spec[1] if rows else None, None)
    return first.update(shape=shape, sharding=NamedSharding(mesh, spec), weak_type=False)


def reshard_like(ct: Array, aval: Any) -> Array:
    """Give a cotangent the sharding of its primal, where the sharding is part of the type."""
    if jax.typeof(ct).sharding.spec == aval.sharding.spec:
        return ct
    return jax.sharding.reshard(ct, aval.sharding)


def manual_axes(x: Array) -> frozenset[str]:
    """Return the mesh axes over which ``x`` varies inside ``shard_map``."""
    return frozenset(jax.typeof(x).mat.varying)


def _call(
    launch: Callable[..., None], dims: Mapping[str, tuple[int, ...]], *operands: Array
) -> Any:
    with _quiet():
        return _callable(launch, len(dims))(*operands, output_dims=dict(dims))


@cache
def _callable(launch: Callable[..., None], num_outputs: int) -> Any:
    return wp.jax_callable(launch, num_outputs=num_outputs, vmap_method=None)


_quieted = threading.RLock()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Start Warp and load kernels without Warp's banner, timings and notice of a missing driver."""
    with _quieted:
        level = wp.config.log_level
        wp.config.log_level = max(level, wp.LOG_WARNING)
        try:
            if wp._src.context.runtime is None:
                with _without_driver_notice():
                    wp.init()
            yield
        finally:
            wp.config.log_level = level


@contextlib.contextmanager
def _without_driver_notice() -> Iterator[None]:
    """Drop the one line that Warp's C code writes to stderr on a machine with no CUDA driver."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr to keep it from
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written:
                if b"Could not find or load the NVIDIA CUDA driver" not in line:
                    os.write(2, line)
