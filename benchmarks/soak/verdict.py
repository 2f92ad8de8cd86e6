"""The table of outcomes and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.soak.clients import HELD, LOST, STATUS, WRONG
from benchmarks.soak.probe import Health
from benchmarks.soak.tally import Tally

MAX_GROWTH = 0.05
MAX_HEALTH_MS = 50.0
WINDOW_SECONDS = 60.0
_SHORTEST_SECONDS = 3 * WINDOW_SECONDS


@dataclass(frozen=True)
class Check:
    """One condition; ``passed`` is None where it was not judged."""

    name: str
    found: str
    passed: bool | None

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "not judged"}[self.passed]
        return f"{self.name:<40}{self.found:<44}{word}"


@dataclass(frozen=True)
class Observed:
    """What was seen from outside the load.

    Attributes
    ----------
    memory
        Resident memory as pairs of ``time.monotonic`` and bytes.
    health
        What the probe saw.
    tracebacks
        Lines of the log with one.
    status
        What the server said of itself at the end, ``/v1/status``; None if it said nothing.
    exit_code
        Of the server after SIGTERM.
    """

    memory: Sequence[tuple[float, int]]
    health: Health
    tracebacks: int
    status: Mapping[str, Any] | None
    exit_code: int


def checks(tally: Tally, observed: Observed) -> list[Check]:
    """Judge a soak."""
    faults = [Check(what, str(tally.faults[what]), not tally.faults[what]) for what in _FAULTS]
    code, status = observed.exit_code, observed.status
    left = "no word" if status is None else status["queue"]["requests"]
    return [
        *faults,
        _memory(tally, observed.memory),
        *_health(observed.health),
        Check("tracebacks in the log", str(observed.tracebacks), not observed.tracebacks),
        Check("requests under way at the end", str(left), left == 0),
        Check("exit code after SIGTERM", str(code), code == 0),
    ]


_FAULTS = (WRONG, LOST, STATUS, HELD)


def _memory(tally: Tally, memory: Sequence[tuple[float, int]]) -> Check:
    """Compare the second minute with the last one."""
    name = f"memory growth, at most {MAX_GROWTH:.0%}"
    start = tally.began + WINDOW_SECONDS
    early = [size for at, size in memory if start <= at < start + WINDOW_SECONDS]
    late = [size for at, size in memory if tally.ended - WINDOW_SECONDS <= at <= tally.ended]
    if tally.ended - tally.began < _SHORTEST_SECONDS or not early or not late:
        last = f"{memory[-1][1] / 2**20:.0f} MiB at the end" if memory else "not read"
        return Check(name, f"{last}, too short to tell", None)
    before, after = median(early), median(late)
    growth = after / before - 1
    found = f"{before / 2**20:.0f} to {after / 2**20:.0f} MiB, {growth:+.1%}"
    return Check(name, found, growth <= MAX_GROWTH)


def _health(health: Health) -> list[Check]:
    p50, p99, longest = (health.quantile_ms(q) for q in (0.5, 0.99, 1))
    found = f"p50 {p50:.1f}, p99 {p99:.1f}, longest {longest:.1f} ms of {len(health.latencies)}"
    failed = ", ".join(f"{n} {what}" for what, n in health.failures.items()) or "0"
    return [
        Check(f"health within {MAX_HEALTH_MS:.0f} ms", found, longest <= MAX_HEALTH_MS),
        Check("health not answered", failed, not health.failures),
    ]


def work(status: Mapping[str, Any] | None) -> str:
    """Return what the server did for it, by its own account."""
    if status is None:
        return "the server did not answer at the end"
    cache, devices = status["cache"], status["devices"]
    launches, requests = (sum(each[key] for each in devices) for key in ("launches", "requests"))
    return (
        f"{requests} requests computed in {launches} launches; {cache['misses']} functions "
        f"compiled, {cache['entries']} kept; {status['queue']['refused']} requests refused"
    )


def table(tally: Tally) -> str:
    """Return outcomes by kind, with the latencies of each kind."""
    seconds = tally.ended - tally.began
    total = sum(tally.outcomes.values())
    lines = [f"{total} exchanges in {seconds:.0f} s, {total / seconds:.0f} a second"]
    for kind in sorted({kind for kind, _ in tally.outcomes}):
        found = {what: n for (other, what), n in tally.outcomes.items() if other == kind}
        counts = ", ".join(f"{n} {what}" for what, n in sorted(found.items()))
        latencies = tally.latencies.get(kind)
        times = ""
        if latencies:
            p50, p99 = np.quantile(latencies, [0.5, 0.99]) * 1e3
            times = f" (p50 {p50:.1f}, p99 {p99:.1f}, longest {max(latencies) * 1e3:.0f} ms)"
        lines.append(f"  {kind:<12}{counts}{times}")
    return "\n".join(lines)
