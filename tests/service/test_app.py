"""The application as a whole: its lifespan, and a loop that is never blocked."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from starlette.types import ASGIApp, Message

from segops_client import wire
from segops_service import Engine, Settings, create_app
from segops_service.exchange import Exchange
from tests.service.helpers import MSGPACK, Process, case, process, running


class Lifespan:
    """The messages between a server and an application about the application's life."""

    def __init__(self, app: ASGIApp) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(app(scope, self._inbox.get, self._outbox.put))

    async def startup(self) -> None:
        await self._exchange("startup")

    async def shutdown(self) -> None:
        await self._exchange("shutdown")
        await self._task

    async def _exchange(self, moment: str) -> None:
        self._inbox.put_nowait({"type": f"lifespan.{moment}"})
        answer = await asyncio.wait_for(self._outbox.get(), 60)
        assert answer["type"] == f"lifespan.{moment}.complete"


def test_the_lifespan_starts_the_engine_without_waiting_and_stops_it() -> None:
    async def live_through() -> None:
        engine = Engine(Settings(platform="cpu"))
        lifespan = Lifespan(create_app(Settings(), engine))
        await lifespan.startup()
        assert "set up" in (engine.obstacle or "")
        await engine.wait_until_set_up()
        assert engine.obstacle is None
        answer = engine.submit(case("segmented_sum").call(), Exchange(""))
        await lifespan.shutdown()
        assert answer.done()
        assert "shutting down" in (engine.obstacle or "")
        assert {device.state for device in engine.snapshot().devices} == {"stopped"}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(live_through())


def test_two_applications_share_nothing() -> None:
    with running() as one, running() as two:
        first, second = (create_app(Settings(), other.engine) for other in (one, two))
        assert first.framework.router is not second.framework.router
        assert first.admission is not second.admission
        assert first.metrics is not second.metrics
        before = two.engine.snapshot().cache
        one.answer(case("segmented_mean").call())
        assert two.engine.snapshot().cache == before
        with first.admission.enter(10):
            assert second.admission.requests == 0


@contextmanager
def _probing(client: httpx.Client) -> Iterator[list[float]]:
    """Ask for health all the while, and collect how long each answer took."""
    done = threading.Event()
    latencies: list[float] = []

    def probe() -> None:
        with httpx.Client(base_url=client.base_url) as own:
            while not done.wait(0.01):
                began = time.monotonic()
                assert own.get("/v1/health/live").is_success
                latencies.append(time.monotonic() - began)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield latencies
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_health_answers_while_large_requests_compile_and_compute(
    server: Process, encoding: str
) -> None:
    rows = 1_000_000 if encoding == "msgpack" else 60_000
    drawn = case("segmented_rms_norm", "float64", rows=rows, segments=100)
    fields = {**drawn.all_fields, "want": ["value", "vjp", "jvp", "hvp"]}
    if encoding == "msgpack":
        content, headers = wire.packb(fields), MSGPACK
    else:
        names = ("x", "cotangent", "idx")
        lists = {name: np.asarray(fields[name]).tolist() for name in names}
        tangents = {"x": drawn.tangents["x"].tolist()}
        body = {**fields, **lists, "tangents": tangents, "dtype": "float64"}
        request = server.client.build_request("POST", "/", json=body)
        content, headers = request.content, {"content-type": "application/json"}
    with _probing(server.client) as latencies:
        response = server.client.post("/v1/segmented_rms_norm", content=content, headers=headers)
    assert response.status_code == 200, response.text
    assert len(latencies) > 5
    assert max(latencies) < 0.5


def test_health_answers_before_the_device_is_set_up() -> None:
    with process() as starting, _probing(starting.client) as latencies:
        starting.wait_until_ready()
    assert max(latencies) < 0.5
