"""What became of one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """One transform of one op in one library, outside or inside of ``jit``."""

    transform: str
    jit: bool
    kind: str
    """One of right, wrong, raises, crashes, hangs and not linear."""
    error: str = ""
    message: str = ""
    deviation: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return the outcome as JSON takes it."""
        return asdict(self)

    def __str__(self) -> str:
        match self.kind:
            case "wrong" if math.isinf(self.deviation):
                return "**wrong** shape"
            case "wrong":
                return f"**wrong** by {self.deviation:.0%}"
            case "raises" | "crashes":
                return f"{self.kind} `{self.error}`"
        return self.kind


def merge(outcomes: Sequence[Outcome]) -> str:
    """Return the text of a cell: one verdict if eager and jitted runs agree, or both."""
    if len({(outcome.kind, outcome.error) for outcome in outcomes}) == 1:
        return str(max(outcomes, key=lambda outcome: outcome.deviation))
    return ", ".join(f"jitted {outcome}" if outcome.jit else str(outcome) for outcome in outcomes)
