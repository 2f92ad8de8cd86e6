"""Jobs and launches: what travels between the queues, the scheduler and the workers."""

import asyncio
from dataclasses import dataclass, field
from time import perf_counter

from segops_service.calls import Answer, Call, Kind
from segops_service.exchange import Exchange
from segops_service.functions import Function, Signature


@dataclass(eq=False, slots=True)
class Job:
    """A call and the future of its answer; whoever loses interest cancels the future.

    Attributes
    ----------
    is_alone
        Whether it must not share a launch.
    """

    call: Call
    kind: Kind
    future: "asyncio.Future[Answer]"
    exchange: Exchange
    is_alone: bool = False
    queued: float = field(default_factory=perf_counter)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not self.future.done()

    def fail(self, error: BaseException) -> None:
        """Give an error instead of an answer."""
        if self.is_wanted:
            self.future.set_exception(error)

    def finish(self, answer: Answer, launch: "Launch") -> None:
        """Give the answer, and note what it took; the record of who has gone is closed."""
        if self.is_wanted:
            self.exchange.batch = len(launch.jobs)
            self.exchange.stages["queue"] = launch.began - self.queued
            self.exchange.stages["compute"] = launch.seconds
            self.future.set_result(answer)


@dataclass(eq=False, slots=True)
class Launch:
    """Jobs of one kind that are computed together by one function."""

    jobs: list[Job]
    signature: Signature
    function: Function | None = None
    began: float = 0.0
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Rows of all jobs."""
        return sum(job.call.rows for job in self.jobs)

    def finish(self, answers: list[Answer]) -> None:
        """Give every job its answer."""
        for job, answer in zip(self.jobs, answers, strict=True):
            job.finish(answer, self)

    def fail(self, error: BaseException) -> None:
        """Give every job an error."""
        for job in self.jobs:
            job.fail(error)
