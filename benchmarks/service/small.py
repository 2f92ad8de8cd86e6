"""Small requests: the service beside the bare route, on 32 keep-alive connections."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.service import bare, problems, server
from benchmarks.service.checks import faults
from benchmarks.service.connection import request
from benchmarks.service.load import Load, generator

OP, ROWS, SEGMENTS = "segmented_sum", 1000, 50
CONNECTIONS = 32
_DISTINCT = 8
_WARM_UP_SECONDS = 1.0
_LOGGED = "both log a line a request"


@dataclass(frozen=True)
class Figures:
    """Rates in requests a second, latencies in milliseconds; each is the median of its rounds."""

    log_level: str
    ours: float
    bare: float
    ratio: float
    ratio_min: float
    ratio_max: float
    ours_p50_ms: float
    ours_p99_ms: float
    bare_p50_ms: float
    bare_p99_ms: float
    generator_cpu_ours: float
    generator_cpu_bare: float
    body_bytes: int
    reply_bytes: int
    rounds: int
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{CONNECTIONS} connections, {OP}, N = {ROWS}, S = {SEGMENTS}, vec3 float32: "
                f"{self.body_bytes} bytes to {self.reply_bytes}, {self.rounds} rounds, "
                + (_LOGGED if self.log_level == "info" else "neither logs requests"),
                f"{'':8}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'generator':>11}",
                f"{'service':8}{self.ours:12,.0f}{self.ours_p50_ms:9.2f}{self.ours_p99_ms:9.2f}"
                f"{self.generator_cpu_ours:10.0%} of one core",
                f"{'bare':8}{self.bare:12,.0f}{self.bare_p50_ms:9.2f}{self.bare_p99_ms:9.2f}"
                f"{self.generator_cpu_bare:10.0%} of one core",
                f"service / bare: {self.ratio:.2f} ({self.ratio_min:.2f} to {self.ratio_max:.2f})",
            )
        )


def measure(rounds: int, seconds: float, log_level: str) -> Figures:
    """Load the service and the bare route by turns, and check the service's answers."""
    asked = [problems.draw(OP, ROWS, SEGMENTS, seed=seed) for seed in range(_DISTINCT)]
    bodies = [problem.pack() for problem in asked]
    to_service = [request(f"/v1/{OP}", body) for body in bodies]
    to_bare = [request(bare.PATH, body) for body in bodies]
    with generator() as load, server.service(SEGOPS_LOG_LEVEL=log_level) as ours:
        ours.wait_until_ready()
        first = load.run(ours, to_service, CONNECTIONS, _WARM_UP_SECONDS)
        reply_bytes = len(first.first[0])
        with server.bare(reply_bytes, log_level) as other:
            load.run(other, to_bare, CONNECTIONS, _WARM_UP_SECONDS)
            pairs = [
                (
                    load.run(ours, to_service, CONNECTIONS, seconds),
                    load.run(other, to_bare, CONNECTIONS, seconds),
                )
                for _ in range(rounds)
            ]
    wrong = faults(asked, [first, *(ours for ours, _ in pairs)])
    return _figures(log_level, pairs, len(bodies[0]), reply_bytes, wrong)


def _figures(
    log_level: str,
    pairs: Sequence[tuple[Load, Load]],
    body_bytes: int,
    reply_bytes: int,
    wrong: tuple[str, ...],
) -> Figures:
    ours, other = zip(*pairs, strict=True)
    ratios = [mine.rate / bare_.rate for mine, bare_ in pairs]
    return Figures(
        log_level=log_level,
        ours=statistics.median(load.rate for load in ours),
        bare=statistics.median(load.rate for load in other),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        ours_p50_ms=_median_ms(ours, 0.5),
        ours_p99_ms=_median_ms(ours, 0.99),
        bare_p50_ms=_median_ms(other, 0.5),
        bare_p99_ms=_median_ms(other, 0.99),
        generator_cpu_ours=statistics.median(load.cpu for load in ours),
        generator_cpu_bare=statistics.median(load.cpu for load in other),
        body_bytes=body_bytes,
        reply_bytes=reply_bytes,
        rounds=len(pairs),
        faults=wrong,
    )


def _median_ms(loads: Sequence[Load], q: float) -> float:
    return statistics.median(load.quantile(q) for load in loads) * 1e3
