"""Asks for the health ten times a second, from a process of its own."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import uvloop

from benchmarks.service.connection import Connection, LostAnswerError, request

_PATH = "/v1/health/live"
_PERIOD_SECONDS = 0.1
_PATIENCE_SECONDS = 5.0


@dataclass
class Health:
    """Seconds of each answer, and the number of probes that got none or another than 200."""

    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def quantile_ms(self, q: float) -> float:
        """Latency that a share ``q`` stayed under."""
        return float(np.quantile(self.latencies, q)) * 1e3 if self.latencies else np.inf


def watch(host: str, port: int, seconds: float) -> Health:
    """Probe for so long."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_watch(host, port, time.monotonic() + seconds))


async def _watch(host: str, port: int, deadline: float) -> Health:
    health = Health()
    message = request(_PATH, method="GET")
    async with Connection(host, port) as connection:
        while time.monotonic() < deadline:
            began = time.perf_counter()
            await _probe(connection, message, health)
            await asyncio.sleep(max(0, began + _PERIOD_SECONDS - time.perf_counter()))
    return health


async def _probe(connection: Connection, message: bytes, health: Health) -> None:
    began = time.perf_counter()
    try:
        answer = await asyncio.wait_for(connection.exchange(message), _PATIENCE_SECONDS)
    except TimeoutError:
        health.failures["no answer"] += 1
    except (OSError, LostAnswerError) as error:
        health.failures[str(error)] += 1
    else:
        health.latencies.append(time.perf_counter() - began)
        if answer.status != 200:
            health.failures[f"status {answer.status}"] += 1
