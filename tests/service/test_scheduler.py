"""The scheduler: what shares a launch, in which order launches go, and whose a fault is."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import segops
from segops_service.calls import Call
from segops_service.errors import OutOfMemoryError
from segops_service.exchange import Exchange
from tests.service.calls import (
    Gate,
    SlowCompiler,
    Submitted,
    acting,
    engine_on,
    library,
    raising,
)
from tests.service.helpers import WANTS, Running, assert_bits_equal, case

SUM, MEAN, DOT = "segmented_sum", "segmented_mean", "segmented_dot"
LARGE = 200


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """One device, and launches of at most four calls, a hundred rows and a hundred segments."""
    with engine_on(1, batch_requests=4, batch_rows=100) as engine:
        for op in (SUM, MEAN, DOT):
            engine.answer(_call(op))
        yield engine


def _call(op: str = SUM, rows: int = 5, segments: int = 3, seed: int = 0) -> Call:
    return case(op, rows=rows, segments=segments, seed=seed).call()


class Held(Submitted):
    """An engine whose only device is held by a call, so that all others wait."""

    async def __aenter__(self) -> "Held":
        self._gate = Gate()
        self._held = self.add("held", acting(_call(), self._gate.hold))
        await asyncio.to_thread(self._gate.wait)
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._gate.open()
        await asyncio.gather(self._held, return_exceptions=True)

    async def finish(self) -> None:
        """Let go, and wait for everything."""
        self._gate.open()
        await asyncio.gather(*self.futures, return_exceptions=True)
        self.done.remove("held")
        del self.exchanges["held"]


def test_calls_that_come_together_share_a_launch(engine: Running) -> None:
    async def scenario() -> dict[str, int]:
        calls = Submitted(engine)
        await asyncio.gather(*(calls.add(str(seed), _call(seed=seed)) for seed in range(4)))
        return calls.batches()

    before = engine.engine.snapshot().devices[0]
    assert engine.run(scenario()) == {"0": 4, "1": 4, "2": 4, "3": 4}
    after = engine.engine.snapshot().devices[0]
    assert (after.launches, after.requests) == (before.launches + 1, before.requests + 4)
    assert after.rows == before.rows + 20


def test_a_call_alone_waits_for_no_other(engine: Running) -> None:
    async def scenario() -> dict[str, int]:
        calls = Submitted(engine)
        for name in ("a", "b", "c"):
            await calls.add(name, _call())
        return calls.batches()

    assert engine.run(scenario()) == {"a": 1, "b": 1, "c": 1}


def test_what_waits_goes_by_kind_and_the_oldest_kind_first(engine: Running) -> None:
    async def scenario() -> Held:
        async with Held(engine) as calls:
            for name, op in (("m1", MEAN), ("s1", SUM), ("m2", MEAN), ("d1", DOT), ("s2", SUM)):
                calls.add(name, _call(op))
            await calls.finish()
            return calls

    calls = engine.run(scenario())
    assert calls.done == ["m1", "m2", "s1", "s2", "d1"]
    assert calls.batches() == {"m1": 2, "m2": 2, "s1": 2, "s2": 2, "d1": 1}


@pytest.mark.parametrize("rows", [5, LARGE])
def test_a_call_that_came_first_is_not_overtaken_by_full_launches(
    engine: Running, rows: int
) -> None:
    async def scenario() -> list[str]:
        async with Held(engine) as calls:
            calls.add("first", _call(MEAN))
            await asyncio.sleep(0)
            for number in range(24):
                calls.add(str(number), _call(rows=rows))
            await asyncio.sleep(0.01)
            await calls.finish()
            return calls.done

    assert engine.run(scenario())[0] == "first"


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ({"rows": 1}, [4, 4, 4, 4, 2, 2]),
        ({"rows": 40}, [2, 2, 2, 2, 2, 2]),
        ({"segments": 40}, [2, 2, 2, 2, 2, 2]),
        ({"rows": 100}, [1, 1, 1, 1, 1, 1]),
        ({"rows": LARGE}, [1, 1, 1, 1, 1, 1]),
        ({"segments": LARGE}, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_launch_keeps_its_bounds(
    engine: Running, sizes: dict[str, int], batches: list[int]
) -> None:
    async def scenario() -> Held:
        async with Held(engine) as calls:
            for number in range(6):
                calls.add(str(number), _call(**sizes))
            await calls.finish()
            return calls

    calls = engine.run(scenario())
    assert calls.done == [str(number) for number in range(6)]
    assert [*calls.batches().values()] == batches


def test_a_full_launch_waits_at_the_device_and_others_for_it(engine: Running) -> None:
    async def scenario() -> list[tuple[int, int]]:
        seen = []

        async def look() -> None:
            await asyncio.sleep(0.005)
            snapshot = engine.engine.snapshot()
            seen.append((snapshot.devices[0].requests_under_way, snapshot.queued))

        async with Held(engine) as calls:
            for number in range(3):
                calls.add(f"a{number}", _call())
            await look()
            calls.add("a3", _call())
            await look()
            for number in range(4):
                calls.add(f"b{number}", _call())
            await look()
            await calls.finish()
        return seen

    assert engine.run(scenario()) == [(1, 3), (5, 0), (5, 4)]


class Arrivals:
    """Observer that says how many requests are arriving, and keeps what it hears."""

    def __init__(self, arriving: int = 0) -> None:
        self.arriving = arriving
        self.launches: list[tuple[int, int]] = []
        self.compilations = 0

    def launched(self, requests: int, rows: int, seconds: float) -> None:
        assert seconds > 0
        self.launches.append((requests, rows))

    def compiled(self, seconds: float) -> None:
        assert seconds > 0
        self.compilations += 1


@pytest.mark.parametrize(("arriving", "batches"), [(1, [2, 2]), (0, [1, 1])])
def test_a_launch_waits_for_calls_that_are_arriving_and_only_then(
    arriving: int, batches: list[int]
) -> None:
    with engine_on(1, batch_delay_seconds=0.5) as engine:
        engine.answer(_call())
        arrivals = Arrivals(arriving)
        engine.engine.observe(arrivals, lambda: arrivals.arriving)

        async def scenario() -> list[int]:
            calls = Submitted(engine)
            first = calls.add("first", _call())
            await asyncio.sleep(0.02)
            await asyncio.gather(first, calls.add("second", _call()))
            return [*calls.batches().values()]

        assert engine.run(scenario()) == batches


def test_a_launch_waits_no_longer_than_the_delay_and_a_full_one_not_at_all() -> None:
    with engine_on(1, batch_delay_seconds=0.3, batch_requests=2) as engine:
        engine.compute(_call(), _call(MEAN))
        engine.engine.observe(Arrivals(), lambda: 1)

        async def scenario() -> list[str]:
            calls = Submitted(engine)
            alone = calls.add("alone", _call())
            await asyncio.sleep(0.01)
            await asyncio.gather(alone, calls.add("m1", _call(MEAN)), calls.add("m2", _call(MEAN)))
            return calls.done

        assert engine.run(scenario()) == ["m1", "m2", "alone"]


def test_every_launch_and_compilation_is_told_to_the_observer() -> None:
    with engine_on(1) as engine:
        arrivals = Arrivals()
        engine.engine.observe(arrivals, lambda: 0)
        engine.compute(_call(), _call(rows=7))
        engine.answer(_call())
        assert arrivals.launches == [(2, 12), (1, 5)]
        assert arrivals.compilations == 1


def test_the_stages_of_a_call_are_timed() -> None:
    with engine_on(1) as engine:

        async def scenario() -> list[set[str]]:
            calls = Submitted(engine)
            await calls.add("cold", _call(MEAN))
            await calls.add("warm", _call(MEAN))
            for exchange in calls.exchanges.values():
                assert min(exchange.stages.values()) >= 0
            return [{*exchange.stages} for exchange in calls.exchanges.values()]

        assert engine.run(scenario()) == [{"queue", "compile", "compute"}, {"queue", "compute"}]


class Unwanted:
    """Calls that are to be cancelled, and how often a worker has touched one of them."""

    def __init__(self) -> None:
        self.touched = 0

    def call(self, op: str = SUM) -> Call:
        return acting(_call(op), self._touch)

    def _touch(self) -> None:
        self.touched += 1


@pytest.fixture
def unwanted() -> Iterator[Unwanted]:
    unwanted = Unwanted()
    yield unwanted
    assert not unwanted.touched


def test_a_cancelled_call_leaves_the_queue_at_once_and_is_not_computed(
    engine: Running, unwanted: Unwanted
) -> None:
    async def scenario() -> dict[str, int]:
        async with Held(engine) as calls:
            calls.add("before", _call())
            cancelled = calls.add("cancelled", unwanted.call())
            calls.add("after", _call())
            cancelled.cancel()
            await asyncio.sleep(0)
            assert engine.engine.snapshot().queued == 2
            await calls.finish()
            return calls.batches()

    assert engine.run(scenario()) == {"before": 2, "cancelled": 0, "after": 2}


def test_a_cancelled_call_of_a_launch_that_waits_at_the_device_is_not_computed(
    engine: Running, unwanted: Unwanted
) -> None:
    async def scenario() -> dict[str, int]:
        async with Held(engine) as calls:
            futures = [calls.add(str(n), unwanted.call()) for n in range(3)]
            calls.add("kept", _call())
            await asyncio.sleep(0.005)
            assert engine.engine.snapshot().queued == 0
            for future in futures:
                future.cancel()
            await calls.finish()
            return calls.batches()

    assert engine.run(scenario()) == {"0": 0, "1": 0, "2": 0, "kept": 1}


def test_a_launch_that_nobody_waits_for_is_no_launch(engine: Running, unwanted: Unwanted) -> None:
    async def scenario() -> None:
        async with Held(engine) as calls:
            futures = [calls.add(str(n), unwanted.call()) for n in range(4)]
            await asyncio.sleep(0.005)
            for future in futures:
                future.cancel()
            await calls.finish()
            await calls.add("next", _call())

    before = engine.engine.snapshot().devices[0]
    engine.run(scenario())
    after = engine.engine.snapshot().devices[0]
    assert (after.launches, after.requests) == (before.launches + 2, before.requests + 2)
    assert (after.requests_under_way, after.failures) == (0, before.failures)


def test_a_call_cancelled_while_its_function_compiles_leaves_at_once(unwanted: Unwanted) -> None:
    with engine_on(1) as engine:

        async def scenario() -> None:
            calls = Submitted(engine)
            async with SlowCompiler(engine):
                cold = [calls.add(str(n), unwanted.call(MEAN)) for n in range(2)]
                await asyncio.sleep(0.005)
                assert engine.engine.snapshot().queued == 2
                cold[0].cancel()
                await asyncio.sleep(0)
                assert engine.engine.snapshot().queued == 1
                cold[1].cancel()
                await asyncio.sleep(0)
                assert engine.engine.snapshot().queued == 0
            assert await calls.add("next", _call(MEAN))

        engine.run(scenario())
        device = engine.engine.snapshot().devices[0]
        assert (device.launches, device.requests, device.failures) == (1, 1, 0)


@pytest.mark.parametrize("cold_call", [_call(MEAN), _call(rows=100_000)], ids=["kind", "size"])
def test_what_is_cold_does_not_hold_up_what_is_warm(cold_call: Call) -> None:
    with engine_on(1) as engine:
        engine.answer(_call())

        async def scenario() -> list[str]:
            calls = Submitted(engine)
            async with SlowCompiler(engine) as compiler:
                cold = calls.add("cold", cold_call)
                await asyncio.sleep(0.005)
                await calls.add("warm", _call())
                compiler.open()
                await cold
            return calls.done

        assert engine.run(scenario()) == ["warm", "cold"]


def test_calls_that_come_while_their_function_compiles_all_get_their_answers() -> None:
    with engine_on(1) as engine:
        drawn = [case(MEAN, rows=5 + n, segments=3, seed=n).call(*WANTS) for n in range(6)]
        large = case(MEAN, rows=70_000, segments=3).call(*WANTS)

        async def scenario() -> list[Any]:
            calls = Submitted(engine)
            async with SlowCompiler(engine) as compiler:
                futures = [calls.add(str(n), call) for n, call in enumerate(drawn[:3])]
                await asyncio.sleep(0.005)
                futures += [calls.add("large", large)]
                futures += [calls.add(str(3 + n), call) for n, call in enumerate(drawn[3:])]
                await asyncio.sleep(0.005)
                compiler.open()
                return await asyncio.gather(*futures)

        answers = engine.run(scenario())
        for call, answer in zip([*drawn[:3], large, *drawn[3:]], answers, strict=True):
            assert_bits_equal(answer, library(call))
        assert engine.engine.snapshot().cache.misses == 3


def _wrong(call: Call) -> Call:
    """Call with an operand that validation would have refused."""
    return replace(call, operands={"x": np.ones((5, 2), np.float32)})


@pytest.mark.parametrize(
    "spoil",
    [
        _wrong,
        lambda call: acting(call, raising(KeyError("this one"))),
        lambda call: acting(call, raising(MemoryError())),
    ],
    ids=["shape", "error", "memory"],
)
def test_one_bad_call_fails_alone_and_its_batch_is_right(engine: Running, spoil: Any) -> None:
    calls = [_call(seed=seed) for seed in range(4)]
    before = engine.engine.snapshot().devices[0]
    answers = engine.compute(calls[0], spoil(calls[1]), *calls[2:])
    assert isinstance(answers[1], (ValueError, KeyError, OutOfMemoryError))
    for place in (0, 2, 3):
        assert_bits_equal(answers[place], library(calls[place]))
    after = engine.engine.snapshot().devices[0]
    assert (after.state, after.restarts) == ("ready", before.restarts)
    assert after.failures == before.failures + 2  # of the batch, and of the one alone
    assert_bits_equal(engine.answer(calls[1]), library(calls[1]))


def test_a_batch_of_bad_calls_fails_each_of_them(engine: Running) -> None:
    answers = engine.compute(*(_wrong(_call(seed=seed)) for seed in range(4)))
    assert all(isinstance(answer, ValueError) for answer in answers)
    assert engine.answer(_call())


def test_a_function_that_cannot_be_compiled_fails_its_calls_and_no_other(engine: Running) -> None:
    bad = [replace(_call(seed=seed), want=("nothing",)) for seed in range(3)]
    good = [_call(seed=seed) for seed in range(3)]
    answers = engine.compute(*bad, *good)
    assert all(isinstance(answer, KeyError) for answer in answers[:3])
    for call, answer in zip(good, answers[3:], strict=True):
        assert_bits_equal(answer, library(call))
    assert engine.engine.snapshot().queued == 0


def test_a_lack_of_memory_while_compiling_is_a_lack_of_memory(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = case("segmented_mul", rows=5, segments=3).call()
    with monkeypatch.context() as patch:
        patch.setattr(segops, "segmented_mul", raising_memory)
        (answer,) = engine.compute(call)
    assert isinstance(answer, OutOfMemoryError)
    assert_bits_equal(engine.answer(call), library(call))


def raising_memory(*_: Any, **__: Any) -> None:
    raise MemoryError


def test_a_call_that_no_memory_holds_is_refused_and_the_next_one_works(engine: Running) -> None:
    worker = engine.engine._scheduler.workers[0]
    small, large = _call(), _call(rows=100_000)

    async def scenario() -> None:
        worker.memory_limit = 10**6
        try:
            assert await engine.engine.submit(small, Exchange(""))
            with pytest.raises(OutOfMemoryError, match="1000000"):
                engine.engine.submit(large, Exchange(""))
            assert await engine.engine.submit(small, Exchange(""))
        finally:
            worker.memory_limit = None

    engine.run(scenario())


def test_exact_buckets_batch_nothing_and_compile_for_each_number_of_segments() -> None:
    with engine_on(1, buckets="exact") as engine:
        misses = engine.engine.snapshot().cache.misses
        sizes = [(5, 3), (5, 4), (9, 4), (0, 0), (7, 3)]
        drawn = [case(SUM, rows=rows, segments=segments).call(*WANTS) for rows, segments in sizes]

        async def scenario() -> tuple[list[Any], dict[str, int]]:
            calls = Submitted(engine)
            futures = [calls.add(str(n), call) for n, call in enumerate(drawn)]
            return await asyncio.gather(*futures), calls.batches()

        answers, batches = engine.run(scenario())
        assert {*batches.values()} == {1}
        for call, answer in zip(drawn, answers, strict=True):
            assert_bits_equal(answer, library(call))
        assert engine.engine.snapshot().cache.misses == misses + 3


def test_calls_of_every_bucket_size_need_few_functions(engine: Running) -> None:
    before = engine.engine.snapshot().cache.misses
    rng = np.random.default_rng(0)
    for _ in range(60):
        engine.answer(_call(rows=int(rng.integers(0, 90)), segments=int(rng.integers(0, 90))))
    assert engine.engine.snapshot().cache.misses == before


def test_the_record_of_a_call_that_was_cancelled_is_closed(engine: Running) -> None:
    async def scenario() -> tuple[Any, Any]:
        calls, gate = Submitted(engine), Gate()
        cancelled = calls.add("cancelled", acting(_call(), gate.hold))
        await asyncio.to_thread(gate.wait)
        cancelled.cancel()
        gate.open()
        await calls.add("after", _call())
        return calls.exchanges["cancelled"], calls.exchanges["after"]

    cancelled, after = engine.run(scenario())
    assert (cancelled.stages, cancelled.batch) == ({}, 0)
    assert ({*after.stages}, after.batch) == ({"queue", "compute"}, 1)
