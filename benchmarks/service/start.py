"""From the start of the process until it is ready, with the kernels compiled before."""

import json
import statistics
from dataclasses import dataclass

from benchmarks.service import server
from benchmarks.service.oracle import OPERANDS

WARM_UP = [
    {"op": op, "rows": 5000, "segments": 100, "want": [want], "cotangent": want == "vjp"}
    for op in OPERANDS
    for want in ("value", "vjp")
]
SETTINGS = {
    "default settings": {},
    f"warm-up list of {len(WARM_UP)}": {"SEGOPS_WARM_UP": json.dumps(WARM_UP)},
}


@dataclass(frozen=True)
class Figures:
    """Seconds with one kind of settings."""

    settings: str
    median_s: float
    max_s: float
    starts: int
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.settings}: median {self.median_s:.2f} s, longest {self.max_s:.2f} s "
            f"of {self.starts} starts"
        )


def measure(starts: int = 5) -> list[Figures]:
    """Start servers one after the other; the first of each kind fills the kernel cache."""
    return [_measure(name, variables, starts) for name, variables in SETTINGS.items()]


def _measure(name: str, variables: dict[str, str], starts: int) -> Figures:
    seconds = []
    for _ in range(starts + 1):
        with server.service(**variables) as ours:
            seconds.append(ours.wait_until_ready())
    return Figures(name, statistics.median(seconds[1:]), max(seconds[1:]), starts)
