"""The scheduler: which calls share a launch, when it goes, and to which device.

It lives on the event loop, so nothing here needs a lock. A device that is busy makes what comes in
meanwhile wait, and that is where batches come from. An idle one waits for nothing but requests that
are arriving at this moment, and for those no longer than the delay.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

import jax

from segops_service import batches
from segops_service.buckets import Buckets
from segops_service.calls import Answer, Call, Kind
from segops_service.errors import NotReadyError, OutOfMemoryError
from segops_service.exchange import Exchange
from segops_service.functions import Functions, Signature
from segops_service.jobs import Job, Launch
from segops_service.queues import Queues
from segops_service.settings import Settings
from segops_service.snapshot import Observer
from segops_service.workers import Worker, known_error

logger = logging.getLogger(__name__)

_MOST_LAUNCHES = 2
"""Launches given to a worker: a full one waits behind the running one, so that no device idles."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


class Scheduler:
    """Forms launches out of calls, gives them to workers, and restarts workers that die.

    Parameters
    ----------
    settings
        Bounds of a batch.
    functions
        Where compiled functions are found.
    """

    def __init__(self, settings: Settings, functions: Functions) -> None:
        is_exact = settings.buckets == "exact"
        self.workers: list[Worker] = []
        self.observer: Observer | None = None
        self.arriving: Callable[[], int] = int
        self.buckets = Buckets(settings.bucket_ratio, is_exact)
        self._max_size = settings.batch_rows
        self._delay = settings.batch_delay_seconds
        self._functions = functions
        self._queues = Queues(1 if is_exact else settings.batch_requests, settings.batch_rows)
        self._unanswered = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._look: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._compiling: dict[Kind, Launch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def queued(self) -> int:
        """Calls that no worker was given yet."""
        return len(self._queues) + sum(len(launch.jobs) for launch in self._compiling.values())

    def submit(self, call: Call, exchange: Exchange) -> "asyncio.Future[Answer]":
        """Have a call computed; cancelling the future takes it out of its queue.

        Raises
        ------
        NotReadyError
            If no worker lives.
        OutOfMemoryError
            If no device could hold it.
        """
        self.require_worker()
        job = self._job(call, exchange)
        self._check_memory(job)
        self._unanswered += 1
        self._is_idle.clear()
        job.future.add_done_callback(lambda future: self._answered(job, future))
        self._queues.add(job)
        self._look_soon()
        return job.future

    def require_worker(self) -> None:
        """Raise :class:`NotReadyError` if no worker lives."""
        for worker in self.workers:
            if worker.state == "ready":
                return
        raise NotReadyError("no device computes now")

    async def warm_up(self, call: Call, worker: Worker) -> None:
        """Compile for a call, and compute it once on a worker if that lives."""
        job = self._job(call, Exchange(""))
        launch = Launch([job], self._signature([job], worker.device))
        launch.function = self._functions.find(launch.signature)
        if launch.function is None:
            launch.function, _ = await self._functions.compile(launch.signature)
        if worker.state == "ready":
            worker.give(launch)
            with suppress(NotReadyError):  # it died, and comes back to functions that are there
                await job.future

    async def finish(self) -> None:
        """Wait until everything that was submitted is answered."""
        await self._is_idle.wait()

    # What the workers tell.

    def worker_ready(self, worker: Worker) -> None:
        """Give a worker its first work."""
        worker.settle("ready")
        self._look_soon()

    def worker_died(self, worker: Worker, error: BaseException) -> None:
        """Fail what a worker was given, and start it again after a pause that grows."""
        worker.settle("dead")
        died = NotReadyError(f"the worker of {worker.device} died: {error!r}")
        for launch in worker.abandon():
            launch.fail(died)
        if not self._alive():
            self._fail_what_waits(died)
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(worker.setbacks, 16))
        asyncio.get_running_loop().call_later(pause, worker.restart)

    def launch_finished(self, worker: Worker, launch: Launch, answers: list[Answer]) -> None:
        """Hand out the answers of a launch."""
        worker.finish(launch)
        launch.finish(answers)
        if self.observer is not None and launch.jobs:
            self.observer.launched(len(launch.jobs), launch.rows, launch.seconds)
        self._look_soon()

    def launch_failed(self, worker: Worker, launch: Launch, error: Exception) -> None:
        """Let only the job at fault have the error of a launch."""
        worker.fail(launch)
        self._fail(launch, error)

    def _fail(self, launch: Launch, error: Exception) -> None:
        if len(launch.jobs) == 1:
            launch.fail(error)
        else:
            for job in launch.jobs:
                job.is_alone = True
            self._queues.put_back(launch.jobs)
        self._look_soon()

    def _fail_what_waits(self, error: BaseException) -> None:
        for job in self._queues.clear():
            job.fail(error)
        for launch in self._compiling.values():
            launch.fail(error)
            launch.jobs.clear()

    def _alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.state == "ready"]

    def _job(self, call: Call, exchange: Exchange) -> Job:
        return Job(call, call.kind, asyncio.get_running_loop().create_future(), exchange)

    def _answered(self, job: Job, future: "asyncio.Future[Answer]") -> None:
        if future.cancelled():
            self._forget(job)
        self._unanswered -= 1
        if not self._unanswered:
            self._is_idle.set()

    def _forget(self, job: Job) -> None:
        launch = self._compiling.get(job.kind)
        if launch is not None and job in launch.jobs:
            launch.jobs.remove(job)
        else:
            self._queues.take([job])

    def _check_memory(self, job: Job) -> None:
        limit = self.workers[0].memory_limit  # the devices of one engine are of a kind
        if limit is None:
            return
        needed = batches.device_bytes(job.kind, *self._sizes([job]))
        if needed > limit:
            raise OutOfMemoryError(f"this needs {needed} bytes on a device that has {limit}")

    def _sizes(self, jobs: list[Job]) -> tuple[int, int]:
        rows = self.buckets.rows(sum(job.call.rows for job in jobs))
        return rows, self.buckets.segments(sum(job.call.num_segments for job in jobs), rows)

    def _signature(self, jobs: list[Job], device: jax.Device) -> Signature:
        # Ids that ascend gain little in small launches, and would need functions of their own.
        is_large = len(jobs) == 1 and jobs[0].call.rows > self._max_size
        is_sorted = is_large and jobs[0].call.ids_ascend
        return Signature(jobs[0].kind, *self._sizes(jobs), is_sorted, device)

    def _look_soon(self) -> None:
        """Dispatch once everything that is on its way through the loop is queued."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give out launches while there are some, and workers to take them."""
        self._look = self._later = None
        while (found := self._next_launch()) is not None:
            worker, launch = found
            self._queues.take(launch.jobs)
            if launch.function is None:
                self._compile_first(launch)
            else:
                worker.give(launch)

    def _next_launch(self) -> tuple[Worker, Launch] | None:
        """Find a launch for the least loaded worker that may have one now."""
        for worker in sorted(self._alive(), key=Worker.load):
            for launch in self._launches(worker):
                return worker, launch
        return None

    def _launches(self, worker: Worker) -> Iterator[Launch]:
        """Yield the launches that may go to a worker now."""
        for jobs, is_full in self._queues.batches():
            if worker.under_way and not (is_full and len(worker.under_way) < _MOST_LAUNCHES):
                return  # what is younger must not overtake what waits for the device
            if not is_full and self._should_wait(jobs[0]):
                continue
            launch = Launch(jobs, self._signature(jobs, worker.device))
            launch.function = self._functions.find(launch.signature)
            if launch.function is not None or jobs[0].kind not in self._compiling:
                yield launch

    def _should_wait(self, oldest: Job) -> bool:
        left = self._delay - (perf_counter() - oldest.queued)
        if left <= 0 or not self.arriving():
            return False
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(left, self._dispatch)
        return True

    def _compile_first(self, launch: Launch) -> None:
        self._compiling[launch.signature.kind] = launch
        task = asyncio.ensure_future(self._compile(launch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compile(self, launch: Launch) -> None:
        """Compile for a launch, then have it computed."""
        began = perf_counter()
        try:
            launch.function, _ = await self._functions.compile(launch.signature)
        except Exception as error:
            self._fail(launch, known_error(error))
        else:
            for job in launch.jobs:
                job.exchange.stages["compile"] = perf_counter() - began
                job.queued = perf_counter()
            if launch.jobs:
                self._give(launch)
        finally:
            del self._compiling[launch.signature.kind]
            self._look_soon()

    def _give(self, launch: Launch) -> None:
        for worker in self._alive():
            if worker.device == launch.signature.device:
                worker.give(launch)
                return
        self._queues.put_back(launch.jobs)
