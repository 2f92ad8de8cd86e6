"""Queues: the jobs that wait, by kind, and which of them make up the next launch."""

from collections import deque
from collections.abc import Iterable, Iterator

from segops_service.calls import Kind
from segops_service.jobs import Job

Batch = tuple[list[Job], bool]


class Queues:
    """One queue for each kind of computation, first in first out.

    Parameters
    ----------
    max_jobs
        Jobs of one launch.
    max_size
        Rows of one launch, and segments; a job over this goes alone.
    """

    def __init__(self, max_jobs: int, max_size: int) -> None:
        self._max_jobs = max_jobs
        self._max_size = max_size
        self._queues: dict[Kind, deque[Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, job: Job) -> None:
        """Put a job at the end of its queue."""
        self._queues.setdefault(job.kind, deque()).append(job)

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs that were taken before all others of their kind."""
        for job in reversed([job for job in jobs if job.is_wanted]):
            self._queues.setdefault(job.kind, deque()).appendleft(job)

    def take(self, jobs: Iterable[Job]) -> None:
        """Take jobs out; those that are not there are no matter."""
        for job in jobs:
            queue = self._queues.get(job.kind)
            if queue is not None and job in queue:
                queue.remove(job)
                if not queue:
                    del self._queues[job.kind]

    def clear(self) -> list[Job]:
        """Take everything out."""
        jobs = [job for queue in self._queues.values() for job in queue]
        self._queues.clear()
        return jobs

    def batches(self) -> Iterator[Batch]:
        """Yield the next launch of each kind, that of the oldest job first.

        Yields
        ------
        tuple
            The jobs, and whether no other job would fit beside them.
        """
        for queue in sorted(self._queues.values(), key=lambda queue: queue[0].queued):
            yield self._head(queue)

    def _head(self, queue: "deque[Job]") -> Batch:
        jobs: list[Job] = []
        rows = segments = 0
        for job in queue:
            rows += job.call.rows
            segments += job.call.num_segments
            fits = max(rows, segments) <= self._max_size and not job.is_alone
            if jobs and not fits:
                return jobs, True
            jobs.append(job)
            if not fits or len(jobs) == self._max_jobs:
                return jobs, True
        return jobs, False
