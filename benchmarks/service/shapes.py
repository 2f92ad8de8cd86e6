"""Thousands of distinct sizes: compilations, memory and the tail of the latencies."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import uvloop

from benchmarks.service import problems, server
from benchmarks.service.connection import Connection, request
from benchmarks.service.server import Server

MAX_ROWS = 100_000
Size = tuple[int, int]
_Draw = Callable[[np.random.Generator], Size]


def _uniform(rng: np.random.Generator) -> Size:
    rows = int(rng.integers(1, MAX_ROWS + 1))
    return rows, int(rng.integers(1, rows + 1))


def _log_uniform(rng: np.random.Generator) -> Size:
    rows = int(np.exp(rng.uniform(0, np.log(MAX_ROWS))))
    return rows, int(rng.integers(1, rows + 1))


def _mostly_empty(rng: np.random.Generator) -> Size:
    rows = int(np.exp(rng.uniform(0, np.log(MAX_ROWS / 2))))
    return rows, int(rng.integers(rows + 1, MAX_ROWS + 1))


MODES: Mapping[str, _Draw] = {
    "log-uniform": _log_uniform,
    "uniform": _uniform,
    "more segments than rows": _mostly_empty,
}


@dataclass(frozen=True)
class Figures:
    """One mode: memory in MiB, latencies of the second half in milliseconds."""

    mode: str
    op: str
    want: tuple[str, ...]
    requests: int
    compilations: int
    late_compilations: int
    rss_start_mib: float
    rss_half_mib: float
    rss_end_mib: float
    rss_growth: float
    median_ms: float
    p99_ms: float
    p99_over_median: float
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.mode}, {self.op} {'+'.join(self.want)}, {self.requests} distinct sizes: "
            f"{self.compilations} compilations, {self.late_compilations} in the second half\n"
            f"  RSS {self.rss_start_mib:.0f} MiB at the start, {self.rss_half_mib:.0f} after half, "
            f"{self.rss_end_mib:.0f} at the end: {self.rss_growth:+.1%} over the second half\n"
            f"  second half: median {self.median_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, "
            f"{self.p99_over_median:.1f} times the median"
        )


@dataclass(frozen=True)
class _Order:
    """What to send where, one request after the other."""

    host: str
    port: int
    op: str
    want: tuple[str, ...]
    sizes: Sequence[Size]


def sizes(mode: str, count: int) -> list[Size]:
    """Draw so many distinct pairs of rows and segments, the same ones each time."""
    rng = np.random.default_rng(0)
    found: dict[Size, None] = {}
    while len(found) < count:
        found[MODES[mode](rng)] = None
    return list(found)


def measure(
    mode: str, count: int = 2000, op: str = "segmented_sum", want: tuple[str, ...] = ("value",)
) -> Figures:
    """Send requests of distinct sizes one by one to a fresh server, and check every answer."""
    drawn = sizes(mode, count)
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor,
        server.service() as ours,
    ):
        ours.wait_until_ready()
        order = _Order(ours.host, ours.port, op, want, drawn[: count // 2])
        misses = [_misses(ours)]
        rss = [ours.rss_bytes / 2**20]
        _, early = executor.submit(_send, order).result()
        misses.append(_misses(ours))
        rss.append(ours.rss_bytes / 2**20)
        latencies, late = executor.submit(_send, replace(order, sizes=drawn[count // 2 :])).result()
        rss.append(ours.rss_bytes / 2**20)
        misses.append(_misses(ours))
    median, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
    return Figures(
        mode=mode,
        op=op,
        want=want,
        requests=count,
        compilations=misses[2] - misses[0],
        late_compilations=misses[2] - misses[1],
        rss_start_mib=rss[0],
        rss_half_mib=rss[1],
        rss_end_mib=rss[2],
        rss_growth=rss[2] / rss[1] - 1,
        median_ms=median,
        p99_ms=p99,
        p99_over_median=p99 / median,
        faults=(*early, *late),
    )


def _misses(ours: Server) -> int:
    return int(ours.status()["cache"]["misses"])


def _send(order: _Order) -> tuple[list[float], list[str]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_send_all(order))


async def _send_all(order: _Order) -> tuple[list[float], list[str]]:
    """Return the latency of each request, and what was wrong."""
    latencies, faults = [], []
    async with Connection(order.host, order.port) as connection:
        for rows, segments in order.sizes:
            problem = problems.draw(order.op, rows, segments, want=order.want, seed=rows)
            message = request(f"/v1/{order.op}", problem.pack())
            began = time.perf_counter()
            answer = await connection.exchange(message)
            latencies.append(time.perf_counter() - began)
            wrong: str | None = f"status {answer.status}"
            if answer.status == 200:
                wrong = problems.difference(
                    problems.unpack(answer.body), problem.expected(), problem.dtype, rows
                )
            if wrong:
                faults.append(f"N = {rows}, S = {segments}: {wrong}")
    return latencies, faults
