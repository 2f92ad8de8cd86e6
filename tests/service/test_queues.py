"""Queues: which jobs wait, in which order they go, and which of them together."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_service.exchange import Exchange
from segops_service.jobs import Job
from segops_service.queues import Queues
from tests.service.helpers import case

SUM, MEAN, DOT = "segmented_sum", "segmented_mean", "segmented_dot"

sizes = st.tuples(st.integers(0, 12), st.integers(0, 12))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Clock:
    """Jobs, each queued one second after the one before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now = 0.0

    def job(self, op: str = SUM, rows: int = 1, segments: int = 1) -> Job:
        self._now += 1
        call = case(op, rows=rows, segments=segments).call()
        return Job(call, call.kind, self._loop.create_future(), Exchange(""), queued=self._now)


@pytest.fixture
def clock(loop: asyncio.AbstractEventLoop) -> Clock:
    return Clock(loop)


def _filled(max_jobs: int, max_size: int, jobs: list[Job]) -> Queues:
    queues = Queues(max_jobs, max_size)
    for job in jobs:
        queues.add(job)
    return queues


def test_the_kind_of_the_oldest_job_goes_first_and_each_kind_in_order(clock: Clock) -> None:
    jobs = [clock.job(op) for op in (MEAN, SUM, MEAN, DOT, SUM)]
    queues = _filled(9, 99, jobs)
    mean, sums, dot = [jobs[0], jobs[2]], [jobs[1], jobs[4]], [jobs[3]]
    assert [*queues.batches()] == [(mean, False), (sums, False), (dot, False)]


def test_a_kind_goes_by_its_oldest_job_that_is_left(clock: Clock) -> None:
    jobs = [clock.job(op) for op in (MEAN, SUM, MEAN)]
    queues = _filled(9, 99, jobs)
    queues.take([jobs[0]])
    assert [*queues.batches()] == [([jobs[1]], False), ([jobs[2]], False)]


def test_a_launch_is_full_at_its_number_of_jobs(clock: Clock) -> None:
    jobs = [clock.job() for _ in range(5)]
    assert [*_filled(3, 99, jobs).batches()] == [(jobs[:3], True)]
    assert [*_filled(3, 99, jobs[:3]).batches()] == [(jobs[:3], True)]
    assert [*_filled(3, 99, jobs[:2]).batches()] == [(jobs[:2], False)]


@pytest.mark.parametrize("size", ["rows", "segments"])
def test_a_launch_is_full_when_the_next_job_would_be_too_much(clock: Clock, size: str) -> None:
    jobs = [clock.job(**{size: 4}) for _ in range(3)]
    assert [*_filled(9, 10, jobs).batches()] == [(jobs[:2], True)]
    assert [*_filled(9, 12, jobs).batches()] == [(jobs, False)]


@pytest.mark.parametrize("size", ["rows", "segments"])
def test_a_job_over_the_bound_goes_alone_and_is_full(clock: Clock, size: str) -> None:
    small, large, other = clock.job(), clock.job(**{size: 11}), clock.job()
    queues = _filled(9, 10, [small, large, other])
    for jobs, is_full in (([small], True), ([large], True), ([other], False)):
        assert [*queues.batches()] == [(jobs, is_full)]
        queues.take(jobs)


def test_a_job_that_must_not_share_does_not(clock: Clock) -> None:
    jobs = [clock.job() for _ in range(3)]
    jobs[1].is_alone = True
    queues = _filled(9, 99, jobs)
    for job, is_full in zip(jobs, (True, True, False), strict=True):
        assert [*queues.batches()] == [([job], is_full)]
        queues.take([job])


def test_jobs_put_back_go_before_those_that_came_later(clock: Clock) -> None:
    jobs = [clock.job() for _ in range(5)]
    queues = _filled(9, 99, jobs[2:])
    queues.put_back(jobs[:2])
    assert [*queues.batches()] == [(jobs, False)]


def test_a_job_that_nobody_waits_for_is_not_put_back(clock: Clock) -> None:
    jobs = [clock.job() for _ in range(3)]
    jobs[1].future.cancel()
    queues = _filled(9, 99, [])
    queues.put_back(jobs)
    assert [*queues.batches()] == [([jobs[0], jobs[2]], False)]
    assert len(queues) == 2


def test_taking_a_job_twice_or_one_that_was_never_there_is_no_matter(clock: Clock) -> None:
    job, other, stranger = clock.job(), clock.job(), clock.job(DOT)
    queues = _filled(9, 99, [job, other])
    queues.take([job, stranger])
    queues.take([job])
    assert [*queues.batches()] == [([other], False)]


def test_clearing_gives_every_job_and_leaves_none(clock: Clock) -> None:
    jobs = [clock.job(op) for op in (SUM, MEAN, SUM)]
    queues = _filled(9, 99, jobs)
    assert {*queues.clear()} == {*jobs}
    assert (len(queues), [*queues.batches()]) == (0, [])


@given(
    st.integers(1, 5),
    st.integers(0, 20),
    st.lists(st.tuples(st.sampled_from([SUM, MEAN, DOT]), sizes, st.booleans()), max_size=12),
)
def test_every_job_goes_once_in_order_and_within_the_bounds(
    loop: asyncio.AbstractEventLoop,
    max_jobs: int,
    max_size: int,
    drawn: list[tuple[str, tuple[int, int], bool]],
) -> None:
    clock = Clock(loop)
    jobs = []
    for op, (rows, segments), is_alone in drawn:
        jobs.append(clock.job(op, rows, segments))
        jobs[-1].is_alone = is_alone
    queues = _filled(max_jobs, max_size, jobs)
    gone: list[Job] = []
    while batch := next(queues.batches(), None):
        taken, is_full = batch
        waiting = [job for job in jobs if job not in gone]
        assert taken[0] is waiting[0]
        same = [job for job in waiting if job.kind == taken[0].kind]
        assert taken == same[: len(taken)]
        if len(taken) > 1:
            assert len(taken) <= max_jobs
            assert not any(job.is_alone for job in taken)
            assert sum(job.call.rows for job in taken) <= max_size
            assert sum(job.call.num_segments for job in taken) <= max_size
        assert is_full or taken == same
        queues.take(taken)
        gone += taken
    assert len(gone) == len(jobs)
    assert len(queues) == 0
