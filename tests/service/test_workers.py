"""Workers: one a device, right on each, and none of them takes more than its own work with it."""

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from segops_service import Engine, scheduler
from segops_service import engine as engine_module
from segops_service.calls import Call
from segops_service.errors import NotReadyError, OutOfMemoryError
from segops_service.exchange import Exchange
from segops_service.settings import WarmUp
from segops_service.snapshot import DeviceSnapshot
from tests.service.calls import (
    FORMS,
    Gate,
    SlowCompiler,
    Submitted,
    acting,
    engine_on,
    kill,
    library,
    raising,
    wait_until_ready,
)
from tests.service.helpers import WANTS, Running, assert_bits_equal, case, leaves, running

SUM, MEAN = "segmented_sum", "segmented_mean"


@pytest.fixture
def quick_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses before a restart that tests can wait for."""
    monkeypatch.setattr(scheduler, "_FIRST_PAUSE", 0.01)


@pytest.fixture(scope="module")
def many() -> Iterator[Running]:
    """An engine on all of the four devices."""
    with running() as engine:
        assert len(engine.engine.devices) == 4
        yield engine


def _call(op: str = SUM, rows: int = 5, seed: int = 0) -> Call:
    return case(op, rows=rows, segments=3, seed=seed).call()


def _devices(engine: Running) -> tuple[DeviceSnapshot, ...]:
    return engine.engine.snapshot().devices


class Spread(Submitted):
    """Calls that hold one worker each, so that the next one goes elsewhere."""

    def __init__(self, engine: Running) -> None:
        super().__init__(engine)
        self._gates: list[Gate] = []
        self._futures: list[asyncio.Future[Any]] = []

    async def hold(self, name: str, call: Call) -> None:
        """Submit a call, and come back when a worker has begun with it."""
        gate = Gate()
        self._gates.append(gate)
        self._futures.append(self.add(name, acting(call, gate.hold)))
        await asyncio.to_thread(gate.wait)

    async def finish(self) -> list[Any]:
        """Let all go and wait for them."""
        for gate in self._gates:
            gate.open()
        return await asyncio.gather(*self._futures, return_exceptions=True)


def test_work_goes_to_the_device_that_has_least(many: Running) -> None:
    async def scenario() -> None:
        calls = Spread(many)
        for seed in range(4):
            await calls.hold(str(seed), _call(seed=seed))
        assert [device.requests_under_way for device in _devices(many)] == [1, 1, 1, 1]
        assert all(isinstance(answer, dict) for answer in await calls.finish())

    before = _devices(many)
    many.run(scenario())
    for one, other in zip(before, _devices(many), strict=True):
        assert (other.launches, other.requests) == (one.launches + 1, one.requests + 1)
        assert other.rows == one.rows + 5
        assert other.compute_seconds > one.compute_seconds
        assert (other.requests_under_way, other.failures, other.restarts) == (0, 0, 0)


def test_of_two_devices_with_as_many_launches_the_one_with_fewer_rows_gets_the_next() -> None:
    with engine_on(2, batch_requests=1) as engine:

        async def scenario() -> list[int]:
            calls = Spread(engine)
            await calls.hold("large", _call(rows=100_000))
            await calls.hold("small", _call())
            next_one = calls.add("next", _call())
            await asyncio.sleep(0.01)
            seen = [device.requests_under_way for device in _devices(engine)]
            await asyncio.gather(calls.finish(), next_one)
            return seen

        assert engine.run(scenario()) == [1, 2]


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_every_device_gives_the_same_bits(many: Running, op: str, form: int) -> None:
    drawn = case(op, "float64", rows=50, form=form).call(*WANTS)

    async def scenario() -> list[Any]:
        calls = Spread(many)
        for name in "abcd":
            await calls.hold(name, drawn)
        assert [device.requests_under_way for device in _devices(many)] == [1, 1, 1, 1]
        return await calls.finish()

    expected = library(drawn)
    for answer in many.run(scenario()):
        assert_bits_equal(answer, expected)


@pytest.mark.parametrize("rows", [5, 10_240])
def test_an_idle_worker_keeps_nothing_of_what_it_computed(rows: int) -> None:
    with engine_on(1) as engine:
        call = case(SUM, rows=rows, segments=2560).call(*WANTS)
        answer = engine.answer(call)
        kept = [weakref.ref(array) for _, array in leaves({"call": call.operands, **answer})]
        del call, answer
        deadline = time.monotonic() + 5  # the thread hands an answer over before it lets go
        while left := [array for array in kept if array() is not None]:
            assert time.monotonic() < deadline, left
            gc.collect()


@pytest.mark.usefixtures("quick_restart")
def test_an_idle_worker_that_dies_fails_the_next_call_and_is_restarted() -> None:
    with engine_on(1) as engine:
        expected = engine.answer(_call())
        kill(engine)  # its thread takes note of it at the next step
        with pytest.raises(NotReadyError, match="SystemExit"):
            engine.answer(_call())
        wait_until_ready(engine)
        assert_bits_equal(engine.answer(_call()), expected)
        (device,) = _devices(engine)
        assert (device.restarts, device.failures, device.requests_under_way) == (1, 1, 0)


@pytest.mark.usefixtures("quick_restart")
def test_a_worker_that_dies_at_work_fails_all_that_it_had_and_is_restarted() -> None:
    with engine_on(1, batch_requests=2) as engine:
        expected = [engine.answer(_call(op)) for op in (SUM, MEAN)]

        async def scenario() -> list[Any]:
            calls = Spread(engine)
            await calls.hold("running", _call())
            others = [calls.add(str(n), _call(MEAN)) for n in range(3)]
            await asyncio.sleep(0.005)
            snapshot = engine.engine.snapshot()
            assert (snapshot.devices[0].requests_under_way, snapshot.queued) == (3, 1)
            kill(engine)
            answers = await asyncio.gather(calls.finish(), *others, return_exceptions=True)
            _require_unable(engine.engine)
            assert engine.engine.snapshot().queued == 0
            return [*answers[0], *answers[1:]]

        answers = engine.run(scenario())
        assert len(answers) == 4
        assert all(isinstance(answer, NotReadyError) for answer in answers)
        wait_until_ready(engine)
        for op, before in zip((SUM, MEAN), expected, strict=True):
            assert_bits_equal(engine.answer(_call(op)), before)
        (device,) = _devices(engine)
        assert (device.restarts, device.failures, device.requests_under_way) == (1, 2, 0)


def _require_unable(engine: Engine) -> None:
    for attempt in (
        engine.require_ready,
        engine.require_able,
        lambda: engine.submit(_call(), Exchange("")),
    ):
        with pytest.raises(NotReadyError):
            attempt()


@pytest.mark.usefixtures("quick_restart")
def test_what_waits_for_its_function_fails_when_the_last_worker_dies() -> None:
    with engine_on(1) as engine:
        engine.answer(_call())

        async def scenario() -> None:
            calls = Submitted(engine)
            async with SlowCompiler(engine):
                cold = calls.add("cold", _call(MEAN))
                await asyncio.sleep(0.005)
                engine.engine._scheduler.workers[0].restart = lambda: None  # type: ignore[method-assign]
                kill(engine)
                with pytest.raises(NotReadyError):
                    await calls.add("struck", _call())
                with pytest.raises(NotReadyError):
                    await asyncio.wait_for(cold, 10)

        engine.run(scenario())
        assert engine.engine.snapshot().queued == 0


@pytest.mark.usefixtures("quick_restart")
def test_the_other_devices_go_on_while_one_is_dead() -> None:
    with engine_on(2, batch_requests=1) as engine:
        expected = engine.answer(_call())

        async def scenario() -> None:
            calls = Spread(engine)
            await calls.hold("first", _call())
            await calls.hold("second", _call())
            kill(engine, 0)
            waiting = [calls.add(str(seed), _call()) for seed in range(8)]
            engine.engine._scheduler.workers[0].restart = lambda: None  # type: ignore[method-assign]
            first, second = await calls.finish()
            assert isinstance(first, NotReadyError)
            assert_bits_equal(second, expected)
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            # What the dead one had been given is lost; what waited is computed by the other.
            lost = [answer for answer in answers if isinstance(answer, NotReadyError)]
            assert len(lost) <= 1
            for answer in answers:
                if not isinstance(answer, NotReadyError):
                    assert_bits_equal(answer, expected)
            assert [device.state for device in _devices(engine)] == ["dead", "ready"]
            engine.engine.require_able()
            with pytest.raises(NotReadyError, match="dead"):
                engine.engine.require_ready()
            assert_bits_equal(await calls.add("after", _call()), expected)

        engine.run(scenario())


def test_repeated_deaths_are_followed_by_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_FIRST_PAUSE", 0.02)
    with engine_on(1) as engine:
        worker = engine.engine._scheduler.workers[0]
        probe, starts = worker._probe, [time.perf_counter()]

        def fail_a_few_times() -> None:
            starts.append(time.perf_counter())
            if len(starts) < 5:
                raise RuntimeError("the device is gone")
            probe()

        worker._probe = fail_a_few_times
        kill(engine)
        with pytest.raises(NotReadyError):
            engine.answer(_call())
        wait_until_ready(engine)
        assert engine.answer(_call())
        pauses = np.diff(starts[1:])
        assert (pauses >= 0.02 * 2.0 ** np.arange(1, 4)).all()
        assert _devices(engine)[0].restarts == 4


@pytest.mark.usefixtures("quick_restart")
def test_a_death_long_after_the_last_one_is_followed_by_a_short_pause() -> None:
    with engine_on(1) as engine:
        for restarts in range(1, 9):
            kill(engine)
            with pytest.raises(NotReadyError):
                engine.answer(_call())
            began = time.monotonic()
            wait_until_ready(engine)
            assert time.monotonic() - began < 1
            assert engine.answer(_call())
            assert _devices(engine)[0].restarts == restarts


@pytest.mark.usefixtures("quick_restart")
def test_a_device_that_no_longer_computes_right_takes_its_worker_with_it() -> None:
    with engine_on(1) as engine:
        worker = engine.engine._scheduler.workers[0]
        probe = worker._probe
        worker._probe = lambda: raising(RuntimeError("it gave [0, 0]"))()
        with pytest.raises(KeyError):
            engine.answer(acting(_call(), raising(KeyError("unknown"))))
        deadline = time.monotonic() + 10
        while engine.engine.obstacle is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        worker._probe = probe
        wait_until_ready(engine)
        assert engine.answer(_call())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 671088704 bytes."),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_in_whichever_words_is_one(many: Running, error: Exception) -> None:
    with pytest.raises(OutOfMemoryError):
        many.answer(acting(_call(), raising(error)))
    assert many.answer(_call())


def test_a_fault_of_a_call_leaves_its_worker_alive(many: Running) -> None:
    before = sum(device.failures for device in _devices(many))
    with pytest.raises(KeyError):
        many.answer(acting(_call(), raising(KeyError("unknown"))))
    assert many.answer(_call())
    after = _devices(many)
    assert sum(device.failures for device in after) == before + 1
    assert {(device.state, device.restarts) for device in after} == {("ready", 0)}


@pytest.fixture
def second_device_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the probe of the second device fail, and every restart with it."""
    probe = engine_module._probe

    def fail_on_the_second(function: Any, signature: Any) -> None:
        if signature.device == jax.devices("cpu")[1]:
            raise RuntimeError("no such luck")
        probe(function, signature)

    monkeypatch.setattr(engine_module, "_probe", fail_on_the_second)


@pytest.mark.usefixtures("second_device_is_broken")
@pytest.mark.parametrize("pause", [0.01, 600])
@pytest.mark.parametrize("warm_up", [(), ({"op": SUM, "rows": 10, "segments": 5},)], ids=len)
def test_a_device_that_fails_its_probe_leaves_the_others_serving(
    warm_up: Any, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(scheduler, name, pause)
    with engine_on(3, warm_up=warm_up) as engine:
        assert "dead" in (engine.engine.obstacle or "") or "start" in (engine.engine.obstacle or "")
        call = _call()
        for answer in engine.compute(*[call] * 8):
            assert_bits_equal(answer, library(call))
        first, second, third = _devices(engine)
        assert first.state == third.state == "ready"
        assert second.state in ("dead", "starting")
        assert (second.launches, second.requests_under_way) == (0, 0)


@pytest.mark.usefixtures("quick_restart")
def test_a_worker_that_dies_while_functions_are_warmed_up_comes_back_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zeros = engine_module._zeros
    deaths = iter([raising(SystemExit())])

    def deadly(warm_up: WarmUp, rows: int, segments: int) -> Call:
        return acting(zeros(warm_up, rows - 1, segments), next(deaths, lambda: None))

    monkeypatch.setattr(engine_module, "_zeros", deadly)
    with engine_on(1, warm_up=({"op": SUM, "rows": 11_000},)) as engine:
        wait_until_ready(engine)
        assert _devices(engine)[0].restarts == 1
        assert engine.answer(_call())


@pytest.mark.usefixtures("quick_restart")
def test_no_mixture_of_faults_loses_or_spoils_an_answer() -> None:
    rng = np.random.default_rng(0)
    with running(batch_requests=8, batch_rows=5000, cache_size=20) as engine:
        drawn = [
            case(op, rows=rows, segments=7, seed=rows).call(*want)
            for op in ("segmented_sum", "segmented_dot", "segmented_rms_norm")
            for rows in (0, 50, 900, 12_000)
            for want in (("value",), WANTS)
        ]
        expected = [engine.answer(call) for call in drawn]
        faults = [raising(error) for error in (KeyError(), MemoryError(), SystemExit())]

        async def scenario() -> dict[asyncio.Future[Any], int]:
            places = {}
            for _ in range(120):
                for place in rng.integers(0, len(drawn), rng.integers(0, 12)).tolist():
                    fate, call = rng.random(), drawn[place]
                    if fate < 0.06:
                        call = acting(call, faults[int(fate / 0.02)])
                    try:
                        future = engine.engine.submit(call, Exchange(""))
                    except NotReadyError:
                        continue
                    places[future] = place
                    if fate > 0.85:
                        engine.loop.call_later(float(rng.random()) * 0.01, future.cancel)
                await asyncio.sleep(float(rng.random()) * 0.004)
            _, hanging = await asyncio.wait(places, timeout=60)
            assert not hanging
            return places

        ends: Counter[str] = Counter()
        for future, place in engine.run(scenario()).items():
            error = None if future.cancelled() else future.exception()
            ends["cancelled" if future.cancelled() else type(error).__name__] += 1
            if not future.cancelled() and error is None:
                assert_bits_equal(future.result(), expected[place])
        known = {"NoneType", "cancelled", "KeyError", "OutOfMemoryError", "NotReadyError"}
        assert {*ends} == known, ends
        assert ends["NoneType"] > ends.total() / 2
        assert engine.engine.snapshot().queued == 0
        wait_until_ready(engine)


def test_a_device_whose_function_compiles_does_not_hold_up_one_that_has_it() -> None:
    with engine_on(2) as engine:
        call = case(MEAN, rows=5, segments=3).call()

        async def scenario() -> None:
            scheduler = engine.engine._scheduler
            await scheduler.warm_up(call, scheduler.workers[1])
            calls = Submitted(engine)
            async with SlowCompiler(engine) as compiler:
                cold = calls.add("cold", call)
                await asyncio.sleep(0.005)
                assert await asyncio.wait_for(calls.add("warm", call), 10)
                assert not cold.done()
                compiler.open()
                await cold

        engine.run(scenario())
