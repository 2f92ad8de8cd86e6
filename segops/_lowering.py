"""Warp launchers as lowerings of the primitives; what depends on a version of JAX or Warp.

Each lowering is a function of JAX arrays that calls a launcher through :func:`warp.jax_callable`.
The kernels read and write XLA's own buffers where they lie; scratch memory is one more output.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import warp as wp
from jax.interpreters import mlir

from segops._kernels import broadcast, reduce

Array = jax.Array


def reduce_rows(
    kind: str, x: Array, y: Array, idx: Array, num_segments: int, indices_are_sorted: bool, platform: str
) -> Array:
    """Lower a reduction: along runs where ids ascend, by scatter on the CPU, sorted first on CUDA."""
    case = (kind, str(x.dtype))
    batch = batch_size(x, y, idx)
    out = (batch, num_segments, len(reduce.REDUCTIONS[kind].terms))
    if platform == "cpu" and not indices_are_sorted:
        scratch = (batch, num_segments * reduce.scratch_words(*case))
        dims = {"out": out, "scratch": scratch}
        result, _ = _call(reduce.launch_scatter[case], dims, x, y, idx)
        return result
    order = jnp.zeros((1, 0), jnp.int32)
    if not indices_are_sorted:
        idx, order = _sorted(idx)
    (result,) = _call(reduce.launch_runs[case], {"out": out}, x, y, idx, order)
    return result


def _sorted(idx: Array) -> tuple[Array, Array]:
    places = jax.lax.broadcasted_iota(jnp.int32, idx.shape, 1)
    ids, order = jax.lax.sort((idx, places), dimension=1, is_stable=True, num_keys=1)
    return ids, order


def broadcast_rows(kind: str, x: Array, y: Array, idx: Array) -> Array:
    """Lower a broadcast."""
    _, (_, _, width) = broadcast.BROADCASTS[kind]
    out = (batch_size(x, y, idx), idx.shape[1], width)
    launch = broadcast.launch_broadcast[kind, str(y.dtype)]
    (result,) = _call(launch, {"out": out}, x, y, idx)
    return result


def count_rows(idx: Array, num_segments: int) -> Array:
    """Lower the count of each segment's rows."""
    (result,) = _call(broadcast.launch_count, {"out": (idx.shape[0], num_segments)}, idx)
    return result


def batch_size(*operands: Array) -> int:
    """Return the length of the batch axis; an operand of length one is shared."""
    return next((a.shape[0] for a in operands if a.shape[0] != 1), 1)


def register(primitive: Any, rule: Callable[..., Array]) -> None:
    """Register ``rule(*operands, platform=..., **params)`` on each platform that Warp has."""
    for platform in ("cpu", "cuda"):
        lowering = mlir.lower_fun(_bound(rule, platform), multiple_results=False)
        mlir.register_lowering(primitive, lowering, platform=platform)


def _bound(rule: Callable[..., Array], platform: str) -> Callable[..., Array]:
    return lambda *operands, **params: rule(*operands, platform=platform, **params)


def manual_axes(x: Array) -> frozenset[str]:
    """Return the mesh axes over which ``x`` varies inside ``shard_map``."""
    kind = getattr(jax.typeof(x), "mat", None)
    return frozenset(kind.varying) if kind is not None else frozenset()


def _call(launch: Callable[..., None], dims: dict[str, tuple[int, ...]], *operands: Array) -> Any:
    with _quiet():
        return _callable(launch, len(dims))(*operands, output_dims=dims)


@cache
def _callable(launch: Callable[..., None], num_outputs: int) -> Any:
    return wp.jax_callable(launch, num_outputs=num_outputs, vmap_method=None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Start Warp and load kernels without Warp's banner, timings and notice of a missing driver."""
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
    sys.stderr.flush()
    kept = os.dup(2)
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
