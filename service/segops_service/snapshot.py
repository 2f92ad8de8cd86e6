"""What the engine says of itself at one moment: plain values for the status and the metrics."""

from dataclasses import dataclass
from typing import Literal, Protocol

WorkerState = Literal["starting", "ready", "dead", "stopped"]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device and its worker; numbers count since the start of the engine."""

    id: int
    kind: str
    platform: str
    state: WorkerState
    requests_under_way: int
    launches: int
    requests: int
    rows: int
    failures: int
    restarts: int
    compute_seconds: float
    memory_used_bytes: int | None
    memory_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """Compiled functions."""

    entries: int
    capacity: int
    hits: int
    misses: int
    evictions: int
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine: ``obstacle`` says why it is not ready, ``queued`` counts requests that wait."""

    obstacle: str | None
    queued: int
    devices: tuple[DeviceSnapshot, ...]
    cache: CacheSnapshot


class Observer(Protocol):
    """Who wants to hear of each launch and each compilation when it has ended."""

    def launched(self, requests: int, rows: int, seconds: float) -> None:
        """Hear of a launch."""

    def compiled(self, seconds: float) -> None:
        """Hear of a compilation."""
