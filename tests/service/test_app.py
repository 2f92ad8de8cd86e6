"""The application as a whole: its lifespan, and a loop that is never blocked."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from segops_client import wire
from segops_service import Engine, Settings, create_app
from tests.service.helpers import MSGPACK, Process, case, process


def test_the_lifespan_starts_the_engine_and_stops_it() -> None:
    engine = Engine("cpu")
    app = create_app(Settings(), engine)

    async def live_through() -> None:
        async with app.router.lifespan_context(app):
            deadline = time.monotonic() + 60
            while engine.obstacle is not None:
                assert time.monotonic() < deadline, engine.obstacle
                await asyncio.sleep(0.01)

    asyncio.run(live_through())
    assert "shutting down" in (engine.obstacle or "")


def test_two_applications_share_nothing() -> None:
    one, two = Engine("cpu"), Engine("cpu")
    assert create_app(Settings(), one).router is not create_app(Settings(), two).router
    one.start().result()
    assert (one.obstacle, one.compiled.cache_info().misses) == (None, 1)
    assert (two.obstacle is None, two.compiled.cache_info().misses) == (False, 0)
    one.stop()


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
