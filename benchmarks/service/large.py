"""Large requests: round trips of 16 MB beside the bare route's, and where the time goes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.service import bare, log, problems, server
from benchmarks.service.checks import faults
from benchmarks.service.connection import request
from benchmarks.service.load import Generator, Load, generator
from benchmarks.service.server import Server

OP, ROWS, SEGMENTS = "segmented_sum", 1_000_000, 10_000
ORDERS = ("sorted", "shuffled")


@dataclass(frozen=True)
class Figures:
    """Round trips of one order of ids: medians of the rounds' medians, in milliseconds."""

    order: str
    ours_ms: float
    bare_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    stages_ms: dict[str, float]
    body_bytes: int
    reply_bytes: int
    rounds: int
    faults: tuple[str, ...]

    def __str__(self) -> str:
        rest = self.ours_ms - sum(self.stages_ms.values())
        shares = [
            f"  {stage:8}{ms:9.2f} ms{ms / self.ours_ms:6.0%}"
            for stage, ms in {**self.stages_ms, "the rest": rest}.items()
        ]
        return "\n".join(
            (
                f"{self.order} ids, {self.body_bytes} bytes to {self.reply_bytes}, "
                f"{self.rounds} rounds: service {self.ours_ms:.1f} ms, bare {self.bare_ms:.1f} ms, "
                f"service / bare {self.ratio:.2f} ({self.ratio_min:.2f} to {self.ratio_max:.2f})",
                *shares,
            )
        )


def measure(rounds: int, seconds: float, rows: int = ROWS) -> list[Figures]:
    """Send over one connection, to the service and to the bare route by turns."""
    with generator() as load, server.service() as ours:
        ours.wait_until_ready()
        return [_measure(load, ours, order, rounds, seconds, rows) for order in ORDERS]


def _measure(
    load: Generator, ours: Server, order: str, rounds: int, seconds: float, rows: int
) -> Figures:
    problem = problems.draw(OP, rows, max(1, rows // 100), is_sorted=order == "sorted")
    body = problem.pack()
    to_service, to_bare = [request(f"/v1/{OP}", body)], [request(bare.PATH, body)]
    first = load.run(ours, to_service, 1, seconds)
    reply_bytes = len(first.first[0])
    logged = ours.log.stat().st_size
    with server.bare(reply_bytes) as other:
        load.run(other, to_bare, 1, seconds)
        pairs = [
            (load.run(ours, to_service, 1, seconds), load.run(other, to_bare, 1, seconds))
            for _ in range(rounds)
        ]
    ratios = [mine.quantile(0.5) / bare_.quantile(0.5) for mine, bare_ in pairs]
    return Figures(
        order=order,
        ours_ms=_median_ms([mine for mine, _ in pairs]),
        bare_ms=_median_ms([bare_ for _, bare_ in pairs]),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        stages_ms=log.stages(ours.log, OP, logged),
        body_bytes=len(body),
        reply_bytes=reply_bytes,
        rounds=rounds,
        faults=faults([problem], [first, *(mine for mine, _ in pairs)]),
    )


def _median_ms(loads: Sequence[Load]) -> float:
    return statistics.median(load.quantile(0.5) for load in loads) * 1e3
