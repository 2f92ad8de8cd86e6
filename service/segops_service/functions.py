"""Compiled functions: one a signature, compiled ahead of time and kept in a bounded cache."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

import segops
from segops_service.calls import Kind
from segops_service.operations import Layout, fill
from segops_service.snapshot import CacheSnapshot, Observer

Function = Callable[..., dict[str, Any]]


class Signature(NamedTuple):
    """What a function is compiled for."""

    kind: Kind
    rows: int
    segments: int
    is_sorted: bool
    device: jax.Device


class Functions:
    """The cache: the least recently used function goes first, and no two threads compile at once.

    It belongs to one event loop; compiling goes on in a thread of its own, so that neither the
    loop nor a device waits for it.

    Parameters
    ----------
    capacity
        Functions kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.observer: Observer | None = None
        self._ready: OrderedDict[Signature, Function] = OrderedDict()
        self._pending: dict[Signature, asyncio.Future[tuple[Function, float]]] = {}
        self._compiler = ThreadPoolExecutor(1, "segops-compiler")
        self._hits = self._misses = self._evictions = 0
        self._seconds = 0.0

    def find(self, signature: Signature) -> Function | None:
        """Return a function that is there, or None."""
        function = self._ready.get(signature)
        if function is not None:
            self._hits += 1
            self._ready.move_to_end(signature)
        return function

    def compile(self, signature: Signature) -> "asyncio.Future[tuple[Function, float]]":
        """Begin to compile a function, or join those who wait for it already.

        Returns
        -------
        asyncio.Future
            The function, and the seconds that it took to compile.
        """
        pending = self._pending.get(signature)
        if pending is None:
            loop = asyncio.get_running_loop()
            self._misses += 1
            pending = loop.run_in_executor(self._compiler, _compile, signature)
            self._pending[signature] = pending
            pending.add_done_callback(lambda done: self._keep(signature, done))
        return asyncio.shield(pending)

    async def close(self) -> None:
        """Finish what is being compiled, and drop what waits for it."""
        await asyncio.to_thread(partial(self._compiler.shutdown, cancel_futures=True))

    def snapshot(self) -> CacheSnapshot:
        """Numbers of this moment."""
        return CacheSnapshot(
            entries=len(self._ready),
            capacity=self.capacity,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            compile_seconds=self._seconds,
        )

    def _keep(self, signature: Signature, done: "asyncio.Future[tuple[Function, float]]") -> None:
        del self._pending[signature]
        if done.cancelled() or done.exception() is not None:
            return
        self._ready[signature], seconds = done.result()
        self._seconds += seconds
        if self.observer is not None:
            self.observer.compiled(seconds)
        while len(self._ready) > self.capacity:
            self._ready.popitem(last=False)
            self._evictions += 1


def _compile(signature: Signature) -> tuple[Function, float]:
    began = perf_counter()
    function = jax.jit(_computation(signature)).lower(*_abstract(signature)).compile()
    # What JAX keeps of the tracing is of no use to anyone now. It takes memory, and collections of
    # garbage, which walk through it, hold up every thread.
    jax.clear_caches()
    return function, perf_counter() - began


def _abstract(signature: Signature) -> tuple[Any, ...]:
    """Shapes of the arguments, as :func:`segops_service.batches.assemble` gives them."""
    kind, form = signature.kind, signature.kind.form
    sharding = jax.sharding.SingleDeviceSharding(signature.device)

    def array(layout: Layout, dtype: Any) -> jax.ShapeDtypeStruct:
        shape = fill(layout, signature.rows, signature.segments)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    return (
        {name: array(layout, kind.dtype) for name, layout in form.operands.items()},
        array(("N",), np.int32),
        array(form.value, kind.dtype) if kind.has_cotangent else None,
        {name: array(form.operands[name], kind.dtype) for name in kind.tangents},
    )


def _computation(signature: Signature) -> Function:
    """Return the function of a call's arrays that gives everything it wants."""
    want = signature.kind.want

    def compute(operands: Any, idx: Any, cotangent: Any, tangents: Any) -> dict[str, Any]:
        operation = getattr(segops, signature.kind.op)
        args = (*(operands[name] for name in signature.kind.form.operands), idx, signature.segments)
        options = {"indices_are_sorted": signature.is_sorted}
        answer: dict[str, Any] = {}
        if "vjp" in want:
            answer["value"], answer["vjp"] = segops.value_and_vjp(
                operation, *args, cotangent=cotangent, **options
            )
        elif "value" in want:
            answer["value"] = operation(*args, **options)
        if "jvp" in want:
            answer["jvp"] = segops.jvp(operation, *args, tangents=tangents, **options)
        if "hvp" in want:
            answer["hvp"] = segops.hvp(
                operation, *args, tangents=tangents, cotangent=cotangent, **options
            )
        return {name: answer[name] for name in want}

    return compute
