"""What is known of one request while it is served: its log line and the metrics come from here."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from starlette.types import Scope

Stage = Literal["upload", "decode", "queue", "compile", "compute", "encode"]

_KEY = "exchange"


@dataclass(slots=True)
class Exchange:
    """One request and its answer, filled in by whoever knows a part.

    Attributes
    ----------
    request_id
        Name of the request in the log and in the answer's ``X-Request-ID``.
    began
        When its head was there, by `time.perf_counter`.
    op, want, rows, segments
        What it asks for; empty until it is decoded, and for other routes than the operations.
    bytes_in, bytes_out
        Lengths of the bodies.
    status
        HTTP status of the answer; 0 if none was sent.
    problem
        Slug of the problem, where the answer is one.
    batch
        Requests that shared its launch.
    stages
        Seconds spent in each stage.
    """

    request_id: str
    began: float = field(default_factory=perf_counter)
    op: str = ""
    want: tuple[str, ...] = ()
    rows: int = 0
    segments: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    status: int = 0
    problem: str = ""
    batch: int = 0
    stages: dict[Stage, float] = field(default_factory=dict)
    _marked: float = field(default_factory=perf_counter)

    def mark(self) -> None:
        """Begin a stage."""
        self._marked = perf_counter()

    def lap(self, stage: Stage) -> None:
        """End a stage, and begin the next one."""
        now = perf_counter()
        self.stages[stage] = now - self._marked
        self._marked = now


def attach(scope: Scope, exchange: Exchange) -> None:
    """Keep an exchange with the request that it is about."""
    scope.setdefault("state", {})[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of a request; a fresh one where nobody keeps any."""
    found: Any = scope.get("state", {}).get(_KEY)
    return found if found is not None else Exchange("")
