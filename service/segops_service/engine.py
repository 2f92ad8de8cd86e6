"""The engine: devices found and proven, functions warmed up, calls computed, and a clean end."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from segops_service import batches
from segops_service.buckets import Buckets
from segops_service.calls import Answer, Array, Call
from segops_service.errors import NotReadyError
from segops_service.exchange import Exchange
from segops_service.functions import Function, Functions, Signature
from segops_service.operations import OPERATIONS, WANTS, Layout, fill
from segops_service.scheduler import Scheduler
from segops_service.settings import Platform, Settings, WarmUp
from segops_service.snapshot import EngineSnapshot, Observer
from segops_service.workers import Worker

logger = logging.getLogger(__name__)


class Engine:
    """Computes calls on every device of a platform.

    It belongs to the event loop that starts it. Starting it turns on JAX's x64 mode for the whole
    process: without it float64 requests would be computed, and answered, in float32.

    Parameters
    ----------
    settings
        The platform, the sizes of the cache and of batches, and what to compile for at the start.
    """

    def __init__(self, settings: Settings) -> None:
        self.requested_platform = settings.platform
        self._warm_ups = settings.warm_up
        self._functions = Functions(settings.cache_size)
        self._scheduler = Scheduler(settings, self._functions)
        self._batch_rows = settings.batch_rows
        self._batch_requests = settings.batch_requests
        self._obstacle: str | None = "the device is being set up"
        self._is_draining = False
        self._set_up: asyncio.Task[None] | None = None

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """Devices that compute, once they are known."""
        return tuple(worker.device for worker in self._scheduler.workers)

    @property
    def obstacle(self) -> str | None:
        """Why the engine is not ready, or None when it is."""
        if self._is_draining:
            return "the server is shutting down"
        if self._obstacle is not None:
            return self._obstacle
        down = [worker for worker in self._scheduler.workers if worker.state != "ready"]
        return f"the worker of {down[0].device} is {down[0].state}" if down else None

    def require_ready(self) -> None:
        """Raise :class:`NotReadyError` if new requests should go elsewhere."""
        if (obstacle := self.obstacle) is not None:
            raise NotReadyError(obstacle)

    def require_able(self) -> None:
        """Raise :class:`NotReadyError` if a call would not be computed.

        That is less than to be ready: one of several devices is enough, and while the server
        drains what still comes is computed.
        """
        if self._obstacle is not None:
            raise NotReadyError(self._obstacle)
        self._scheduler.require_worker()

    def observe(self, observer: Observer, arriving: Callable[[], int]) -> None:
        """Tell an observer of launches and compilations; learn from ``arriving`` who is coming."""
        self._functions.observer = self._scheduler.observer = observer
        self._scheduler.arriving = arriving

    async def start(self) -> None:
        """Begin to set up; the engine is ready once every device has computed right."""
        self._set_up = asyncio.ensure_future(self._try_to_set_up())

    async def wait_until_set_up(self) -> None:
        """Wait until it is ready, or known that it will not be."""
        assert self._set_up is not None, "the engine was not started"
        await asyncio.shield(self._set_up)

    def drain(self) -> None:
        """Be ready no more; what is under way, and what still comes, is computed until the stop."""
        self._is_draining = True

    async def stop(self) -> None:
        """Finish what was taken, then end the workers."""
        self.drain()
        if self._set_up is not None:
            self._set_up.cancel()
            await asyncio.wait([self._set_up])
        self._obstacle = self.obstacle
        await self._scheduler.finish()
        for worker in self._scheduler.workers:
            await worker.stop()
        await self._functions.close()

    def submit(self, call: Call, exchange: Exchange) -> "asyncio.Future[Answer]":
        """Have a call computed; cancelling the future takes it out of the queue.

        Raises
        ------
        NotReadyError
            If the device is missing, not set up yet, or the engine was stopped.
        OutOfMemoryError
            If the device cannot hold the call; the next one may fit. Also raised by the future.
        """
        if self._obstacle is not None:
            raise NotReadyError(self._obstacle)
        return self._scheduler.submit(call, exchange)

    def snapshot(self) -> EngineSnapshot:
        """Numbers of this moment."""
        return EngineSnapshot(
            obstacle=self.obstacle,
            queued=self._scheduler.queued,
            devices=tuple(worker.snapshot() for worker in self._scheduler.workers),
            cache=self._functions.snapshot(),
        )

    async def _try_to_set_up(self) -> None:
        try:
            await self._find_devices()
            await self._warm_up()
        except Exception as error:
            logger.exception("the device cannot be used")
            self._obstacle = f"the device cannot be used: {error}"
        else:
            _spare_the_collector()
            self._obstacle = None

    async def _find_devices(self) -> None:
        jax.config.update("jax_enable_x64", True)
        for device in await asyncio.to_thread(find_devices, self.requested_platform):
            signature = _probe_signature(self._scheduler.buckets, device)
            function, _ = await self._functions.compile(signature)
            worker = Worker(device, partial(_probe, function, signature), self._scheduler)
            self._scheduler.workers.append(worker)
            worker.start()
            logger.info("computing on %s", device)
        for worker in self._scheduler.workers:
            await worker.is_settled.wait()

    async def _warm_up(self) -> None:
        for worker in self._scheduler.workers:
            for warm_up in self._warm_ups:
                for call in self._warm_calls(warm_up):
                    await self._scheduler.warm_up(call, worker)
        cache = self._functions.snapshot()
        lost = cache.evictions - len(self.devices)  # the functions of the probes went first
        if lost > 0:
            logger.warning(
                "SEGOPS_CACHE_SIZE=%d is by %d too small for what SEGOPS_WARM_UP lists",
                cache.capacity,
                lost,
            )

    def _warm_calls(self, warm_up: WarmUp) -> Iterator[Call]:
        """Yield a call for each size that such requests, alone or in a batch, are rounded up to."""
        most = (self._most_of_a_launch(size) for size in (warm_up.rows, warm_up.segments))
        for rows, segments in self._scheduler.buckets.up_to(*most):
            call = _zeros(warm_up, rows, segments)
            yield call
            if rows > self._batch_rows:
                yield replace(call, ids_ascend=True)

    def _most_of_a_launch(self, size: int) -> int:
        """Rows or segments of the largest launch of requests of a size."""
        batch = 1 if self._scheduler.buckets.is_exact else self._batch_requests
        return max(size, min(size * batch, self._batch_rows))


def _spare_the_collector() -> None:
    """Keep garbage collections from walking through all that was imported, which stays anyway.

    That took up to a third of a second at a time.
    """
    gc.collect()
    gc.freeze()


def find_devices(platform: Platform) -> list[jax.Device]:
    """Devices of a platform; an error, and never another platform, if it has none."""
    return list(jax.devices(None if platform == "auto" else platform))


def _zeros(warm_up: WarmUp, rows: int, segments: int) -> Call:
    form = OPERATIONS[warm_up.op].form(warm_up.ndim) or OPERATIONS[warm_up.op].forms[0]

    def zeros(layout: Layout) -> Array:
        return np.zeros(fill(layout, rows, segments), warm_up.dtype)

    return Call(
        warm_up.op,
        {name: zeros(layout) for name, layout in form.operands.items()},
        np.zeros(rows, np.int32),
        segments,
        tuple(want for want in WANTS if want in warm_up.want),
        zeros(form.value) if warm_up.cotangent else None,
        {name: zeros(form.operands[name]) for name in form.operands if name in warm_up.tangents},
        ids_in_range=segments > 0,
    )


_PROBE = Call(
    "segmented_sum",
    {"x": np.array([1, 2, 4], np.float32)},
    np.array([0, 0, 1], np.int32),
    2,
    ("value",),
    None,
    {},
    ids_in_range=True,
)


def _probe_signature(buckets: Buckets, device: jax.Device) -> Signature:
    rows = buckets.rows(_PROBE.rows)
    return Signature(_PROBE.kind, rows, buckets.segments(_PROBE.num_segments, rows), False, device)


def _probe(function: Function, signature: Signature) -> None:
    """Compute the sums [3, 4] with a function, or raise."""
    arrays = batches.assemble([_PROBE], signature.rows, signature.segments)
    (answer,) = batches.split(jax.device_get(function(*arrays)), [_PROBE])
    if not np.array_equal(np.asarray(answer["value"]), [3, 4]):
        raise RuntimeError(f"the first computation gave {answer['value']}, not [3. 4.]")
