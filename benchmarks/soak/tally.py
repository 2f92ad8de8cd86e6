"""What became of the requests, counted."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

_SHOWN = 30


@dataclass
class Tally:
    """Outcomes and faults of one or more processes.

    Attributes
    ----------
    outcomes
        Number of exchanges by kind and outcome.
    faults
        Number of exchanges that went wrong, by what was wrong: a word of the table in `judge`.
    examples
        The first faults in full.
    latencies
        Seconds of the answered exchanges by kind.
    began, ended
        When the load began and ended, by ``time.monotonic``.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    began: float = 0
    ended: float = 0

    def count(self, kind: str, outcome: str) -> None:
        """Count an exchange that went as it should."""
        self.outcomes[kind, outcome] += 1

    def fault(self, kind: str, what: str, detail: str) -> None:
        """Count an exchange that went wrong."""
        self.outcomes[kind, what] += 1
        self.faults[what] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{kind}: {what}: {detail}")
