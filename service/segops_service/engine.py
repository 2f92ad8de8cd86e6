"""The engine: one thread owns JAX and the device, and runs one call at a time."""

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

import segops
from segops_service.calls import Answer, Call
from segops_service.errors import NotReadyError, OutOfMemoryError
from segops_service.operations import OPERATIONS
from segops_service.settings import Platform

logger = logging.getLogger(__name__)

_STOPPED = "the server is shutting down"


@dataclass(frozen=True)
class Signature:
    """What a compiled function is compiled for."""

    op: str
    num_segments: int
    indices_are_sorted: bool
    want: tuple[str, ...]
    tree: Hashable
    shapes: tuple[tuple[tuple[int, ...], str], ...]


class Engine:
    """Runs calls on one device, with one ahead-of-time compiled function per signature.

    Starting it turns on JAX's x64 mode for the whole process: without it float64 requests would
    be computed, and answered, in float32.

    Parameters
    ----------
    platform
        ``cuda``, ``cpu``, or ``auto`` for JAX's default device.
    cache_size
        Compiled functions kept.
    """

    def __init__(self, platform: Platform = "auto", cache_size: int = 256) -> None:
        self.requested_platform = platform
        self.compiled = lru_cache(maxsize=cache_size)(self._compile)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="segops-device")
        self._device: jax.Device | None = None
        self._obstacle: str | None = "the device is being set up"

    @property
    def device(self) -> jax.Device | None:
        """Device that computes, once it is known."""
        return self._device

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be computed now, or None when the engine is ready."""
        return self._obstacle

    def start(self) -> "Future[None]":
        """Begin to set up the device; the engine is ready once a first computation came right."""
        return self._worker.submit(self._set_up)

    def stop(self) -> None:
        """Take no more calls and wait for those already taken."""
        self._worker.shutdown()
        self._obstacle = _STOPPED

    def require_ready(self) -> None:
        """Raise :class:`NotReadyError` if nothing can be computed now."""
        if self._obstacle is not None:
            raise NotReadyError(self._obstacle)

    async def compute(self, call: Call) -> Answer:
        """Run a call on the device's thread and wait for its answer.

        Raises
        ------
        NotReadyError
            If the device is missing, not set up yet, or the engine was stopped.
        OutOfMemoryError
            If the device cannot hold the call; the next one may fit.
        """
        self.require_ready()
        try:
            future = self._worker.submit(self._run, call)
        except RuntimeError as error:  # its way to say that it was shut down
            raise NotReadyError(_STOPPED) from error
        return await asyncio.wrap_future(future)

    def _set_up(self) -> None:
        try:
            jax.config.update("jax_enable_x64", True)
            self._device = find_device(self.requested_platform)
            logger.info("computing on %s", self._device)
            self._self_test()
        except Exception as error:
            logger.exception("the device cannot be used")
            self._obstacle = f"the device cannot be used: {error}"
        else:
            self._obstacle = None

    def _self_test(self) -> None:
        x = np.array([1.0, 2.0, 4.0], np.float32)
        idx = np.array([0, 0, 1], np.int32)
        call = Call("segmented_sum", {"x": x}, idx, 2, False, ("value",), None, {})
        value = self._run(call)["value"]
        if not np.array_equal(np.asarray(value), [3.0, 4.0]):
            raise RuntimeError(f"the first computation gave {value}, not [3. 4.]")

    def _run(self, call: Call) -> Answer:
        arrays = (call.operands, call.idx, call.cotangent, call.tangents)
        leaves, tree = jax.tree.flatten(arrays)
        signature = Signature(
            call.op,
            call.num_segments,
            call.indices_are_sorted,
            call.want,
            tree,
            tuple((leaf.shape, leaf.dtype.str) for leaf in leaves),
        )
        try:
            # The call, and with it every buffer that JAX may read in place, lives until here ends.
            answer = jax.device_get(self.compiled(signature)(*arrays))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise OutOfMemoryError("the device's memory does not hold this request") from error
            raise
        return {name: answer[name] for name in call.want}

    def _compile(self, signature: Signature) -> Callable[..., Any]:
        sharding = jax.sharding.SingleDeviceSharding(self._device)
        leaves = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for shape, dtype in signature.shapes
        ]
        arrays = jax.tree.unflatten(signature.tree, leaves)
        return jax.jit(_computation(signature)).lower(*arrays).compile()


def find_device(platform: Platform) -> jax.Device:
    """First device of a platform; an error, and never another platform, if it has none."""
    return jax.devices(None if platform == "auto" else platform)[0]


def _computation(signature: Signature) -> Callable[..., dict[str, Any]]:
    """Return the function of a call's arrays that gives everything it wants."""
    names = OPERATIONS[signature.op].operands
    want = signature.want

    def compute(operands: Any, idx: Any, cotangent: Any, tangents: Any) -> dict[str, Any]:
        operation = getattr(segops, signature.op)
        args = (*(operands[name] for name in names), idx, signature.num_segments)
        options = {"indices_are_sorted": signature.indices_are_sorted}
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
