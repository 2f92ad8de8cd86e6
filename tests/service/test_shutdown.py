"""The end of an engine: what was taken is answered, nothing more is, and nothing is left."""

import asyncio
import threading
from typing import Any

import pytest

from segops_service import Engine, Settings, scheduler
from segops_service.errors import NotReadyError
from segops_service.exchange import Exchange
from tests.service.calls import (
    Gate,
    SlowCompiler,
    Submitted,
    acting,
    engine_on,
    kill,
    library,
    wait_until_ready,
)
from tests.service.helpers import WANTS, assert_bits_equal, case, running

SUM, MEAN = "segmented_sum", "segmented_mean"
_CALL = case(SUM, rows=5, segments=3).call()


def test_a_drain_makes_unready_and_still_computes_what_comes() -> None:
    call = case(SUM).call()
    with running() as engine:
        engine.engine.drain()
        assert "shutting down" in (engine.engine.obstacle or "")
        with pytest.raises(NotReadyError, match="shutting down"):
            engine.engine.require_ready()
        engine.engine.require_able()
        assert_bits_equal(engine.answer(call), library(call))


def test_a_stop_answers_all_that_was_submitted_and_takes_nothing_after() -> None:
    with engine_on(2, batch_requests=4) as engine:

        async def scenario() -> list[Any]:
            calls, gate = Submitted(engine), Gate()
            futures = [calls.add("held", acting(case(SUM).call(), gate.hold))]
            await asyncio.to_thread(gate.wait)
            for number in range(30):
                drawn = case((SUM, MEAN, "segmented_mul")[number % 3], rows=number, seed=number)
                futures.append(calls.add(str(number), drawn.call(*WANTS)))
            stop = asyncio.ensure_future(engine.engine.stop())
            gate.open()
            refusals = 0
            while not stop.done():
                await asyncio.sleep(0)
                try:
                    late = engine.engine.submit(case(SUM).call(), Exchange(""))
                except NotReadyError:
                    refusals += 1
                else:
                    futures.append(late)
            assert refusals
            return await asyncio.wait_for(asyncio.gather(*futures), 10)

        answers = engine.run(scenario())
        for number, answer in enumerate(answers[1:31]):
            drawn = case((SUM, MEAN, "segmented_mul")[number % 3], rows=number, seed=number)
            assert_bits_equal(answer, library(drawn.call(*WANTS)))


def test_a_stop_does_not_wait_for_functions_that_nobody_needs() -> None:
    with engine_on(1) as engine:

        async def scenario() -> None:
            async with SlowCompiler(engine) as compiler:
                call = engine.engine.submit(case(MEAN).call(), Exchange(""))
                await asyncio.sleep(0.005)
                call.cancel()
                stop = asyncio.ensure_future(engine.engine.stop())
                await asyncio.sleep(0.01)
                compiler.open()
                await stop
            assert engine.engine.snapshot().queued == 0

        engine.run(scenario())
        assert engine.engine.snapshot().cache.misses == 2  # begun, and dropped


def test_nothing_is_computed_before_the_start_and_after_the_stop() -> None:
    call = case(SUM).call()

    async def scenario() -> None:
        engine = Engine(Settings(platform="cpu"))
        with pytest.raises(NotReadyError, match="set up"):
            engine.submit(call, Exchange(""))
        await engine.start()
        with pytest.raises(NotReadyError, match="set up"):
            engine.submit(call, Exchange(""))
        await engine.wait_until_set_up()
        assert await engine.submit(call, Exchange(""))
        await engine.stop()
        with pytest.raises(NotReadyError, match="shutting down"):
            engine.submit(call, Exchange(""))

    asyncio.run(scenario())


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("segops")]


@pytest.mark.parametrize("moment", ["dead", "starting", "restarted"])
def test_a_stop_ends_cleanly_whatever_a_worker_does(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(scheduler, name, 600.0 if moment == "dead" else 0.01)
    before = _threads()
    with engine_on(2) as engine:
        worker = engine.engine._scheduler.workers[0]
        gate, probe = Gate(), worker._probe
        if moment == "starting":
            worker._probe = lambda: (gate.hold(), probe())[0]
        kill(engine)
        with pytest.raises(NotReadyError):
            engine.answer(_CALL)
        if moment == "starting":
            gate.wait()
            engine.loop.call_soon_threadsafe(lambda: engine.loop.call_later(0.05, gate.open))
        elif moment == "restarted":
            wait_until_ready(engine)
        else:
            assert engine.engine.snapshot().devices[0].state == "dead"
    assert _threads() == before
    assert {device.state for device in engine.engine.snapshot().devices} == {"stopped"}


def test_a_worker_whose_device_fails_while_it_is_stopped_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_FIRST_PAUSE", 0.0)
    before = _threads()
    with engine_on(2) as engine:
        gate, attempts = Gate(), []

        def fail_late() -> None:
            attempts.append(1)
            gate.hold()
            raise RuntimeError("gone")

        engine.engine._scheduler.workers[0]._probe = fail_late
        kill(engine)
        with pytest.raises(NotReadyError):
            engine.answer(_CALL)
        gate.wait()

        async def stop_and_look() -> None:
            stop = asyncio.ensure_future(engine.engine.stop())
            await asyncio.sleep(0.01)
            gate.open()
            await stop
            await asyncio.sleep(0.05)

        engine.run(stop_and_look())
        assert len(attempts) == 1
        assert _threads() == before
        assert {device.state for device in engine.engine.snapshot().devices} == {"stopped"}


def test_a_stop_while_everything_is_set_up_ends_cleanly() -> None:
    before = _threads()
    for pause in (0, 0.01, 0.05, 0.1, 0.3):

        async def scenario(pause: float) -> None:
            engine = Engine(Settings(platform="cpu", warm_up=({"op": MEAN}, {"op": SUM})))
            await engine.start()
            waiting = asyncio.ensure_future(engine.wait_until_set_up())
            await asyncio.sleep(pause)
            await engine.stop()
            await asyncio.wait([waiting])
            with pytest.raises(NotReadyError, match="shutting down"):
                engine.submit(_CALL, Exchange(""))
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(scenario(pause))
        assert _threads() == before
