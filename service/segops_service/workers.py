"""Workers: one thread a device, which alone computes on it, one launch after the other."""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

import jax
import numpy as np

import segops
from segops_service import batches
from segops_service.calls import Answer
from segops_service.errors import OutOfMemoryError
from segops_service.jobs import Launch
from segops_service.snapshot import DeviceSnapshot, WorkerState

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """Who hears, on the event loop, what became of a worker and of its launches."""

    def worker_ready(self, worker: "Worker") -> None:
        """Hear that the worker's device computes right."""

    def worker_died(self, worker: "Worker", error: BaseException) -> None:
        """Hear that the worker's thread has ended and left what it was given."""

    def launch_finished(self, worker: "Worker", launch: Launch, answers: list[Answer]) -> None:
        """Hear of the answers of a launch, one for each of its jobs."""

    def launch_failed(self, worker: "Worker", launch: Launch, error: Exception) -> None:
        """Hear that a launch gave an error; the worker goes on."""


class Worker:
    """A device, and the thread that computes on it.

    Its methods belong to the event loop, except for those that the thread runs.

    Parameters
    ----------
    device
        The device.
    probe
        Computes something on the device, and raises if it does not come right.
    listener
        Hears of everything.

    Attributes
    ----------
    restarts
        Threads started after one has died.
    setbacks
        Those of them after which no launch has ended well.
    """

    def __init__(self, device: jax.Device, probe: Callable[[], None], listener: Listener) -> None:
        self.device = device
        self.memory_limit: int | None = (device.memory_stats() or {}).get("bytes_limit")
        self.state: WorkerState = "stopped"
        self.under_way: list[Launch] = []
        self.restarts = 0
        self.setbacks = 0
        self._launches = self._requests = self._rows = self._failures = 0
        self._seconds = 0.0
        self.is_settled = asyncio.Event()
        self._is_stopping = False
        self._probe = probe
        self._listener = listener

    def load(self) -> tuple[int, int]:
        """Return how many launches it has to compute, and their rows."""
        return len(self.under_way), sum(launch.signature.rows for launch in self.under_way)

    def start(self) -> None:
        """Start the thread, which first probes the device."""
        self.state = "starting"
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Launch | None] = SimpleQueue()
        name = f"segops-{self.device.platform}-{self.device.id}"
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def settle(self, state: WorkerState) -> None:
        """Take note of what the thread said: that it is ready, or that it has died."""
        self.state = state
        self.is_settled.set()

    def restart(self) -> None:
        """Start another thread after one has died."""
        if self.state == "dead" and not self._is_stopping:
            self.restarts += 1
            self.setbacks += 1
            self.start()

    async def stop(self) -> None:
        """End the thread, once it has computed what it was given."""
        self._is_stopping = True
        if self.state in ("starting", "ready"):
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)
        self.state = "stopped"

    def give(self, launch: Launch) -> None:
        """Have a launch computed after those before it."""
        self.under_way.append(launch)
        self._inbox.put(launch)

    def finish(self, launch: Launch) -> None:
        """Count a launch that has ended well, unless nobody waited for it."""
        self.under_way.remove(launch)
        self.setbacks = 0
        self._launches += bool(launch.jobs)
        self._requests += len(launch.jobs)
        self._rows += launch.rows
        self._seconds += launch.seconds

    def fail(self, launch: Launch) -> None:
        """Count a launch that gave an error."""
        self.under_way.remove(launch)
        self._failures += 1

    def abandon(self) -> list[Launch]:
        """Count as failed, and return, everything that a thread left when it died."""
        left, self.under_way = self.under_way, []
        self._failures += len(left)
        return left

    def snapshot(self) -> DeviceSnapshot:
        """Numbers of this moment."""
        memory = self.device.memory_stats() or {}
        return DeviceSnapshot(
            id=self.device.id,
            kind=self.device.device_kind,
            platform=platform_name(self.device),
            state=self.state,
            requests_under_way=sum(len(launch.jobs) for launch in self.under_way),
            launches=self._launches,
            requests=self._requests,
            rows=self._rows,
            failures=self._failures,
            restarts=self.restarts,
            compute_seconds=self._seconds,
            memory_used_bytes=memory.get("bytes_in_use"),
            memory_limit_bytes=memory.get("bytes_limit"),
        )

    def _live(self) -> None:
        try:
            self._probe()
            self._tell(self._listener.worker_ready)
            while (launch := self._inbox.get()) is not None:
                self._run(launch)
                del launch  # with its arrays, which are not to be kept until the next one comes
        except BaseException as error:
            self._tell(self._listener.worker_died, error)  # first: the log may fail as well
            logger.exception("the worker of %s died", self.device)

    def _run(self, launch: Launch) -> None:
        launch.jobs = [job for job in launch.jobs if job.is_wanted]
        try:
            answers = _compute(launch) if launch.jobs else []
        except Exception as error:
            known = known_error(error)
            self._tell(self._listener.launch_failed, launch, known)
            if known is error and not isinstance(error, segops.ArgumentError):
                logger.exception("a launch on %s failed", self.device)
                self._probe()  # a device that no longer computes takes its worker with it
        else:
            self._tell(self._listener.launch_finished, launch, answers)

    def _tell(self, what: Callable[..., None], *about: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, self, *about)
        except RuntimeError:
            logger.debug("the event loop has gone before the worker of %s", self.device)


def platform_name(device: jax.Device) -> str:
    """Name of a device's platform as ``SEGOPS_PLATFORM`` spells it."""
    return "cuda" if device.platform == "gpu" else str(device.platform)


def _compute(launch: Launch) -> list[Answer]:
    launch.began = perf_counter()
    calls = [job.call for job in launch.jobs]
    signature, function = launch.signature, launch.function
    assert function is not None, "a launch is given with its function"
    arrays = batches.assemble(calls, signature.rows, signature.segments)
    # The arrays, which the device may read where they are, live until the results are here.
    answers = batches.split(_fetch(function(*arrays)), calls)
    launch.seconds = perf_counter() - launch.began
    return answers


def _fetch(results: Any) -> Any:
    """Bring results to the host, with all transfers under way at once."""
    for leaf in jax.tree.leaves(results):
        leaf.copy_to_host_async()
    return jax.tree.map(np.asarray, results)


def known_error(error: Exception) -> Exception:
    """Tell a lack of memory, in whichever words, from other errors."""
    # JAX says so in errors of several kinds, plain ValueErrors among them.
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return OutOfMemoryError("the device's memory does not hold this request")
    return error
