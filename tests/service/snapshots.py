"""Engines that stand still: snapshots made by hand."""

from dataclasses import dataclass
from typing import Any

from segops_service.snapshot import CacheSnapshot, DeviceSnapshot, EngineSnapshot

CACHE = CacheSnapshot(entries=3, capacity=256, hits=70, misses=5, evictions=2, compile_seconds=1.25)


@dataclass
class Still:
    """Something that has a snapshot, always the same."""

    obstacle: str | None = None
    queued: int = 0
    devices: tuple[DeviceSnapshot, ...] = ()
    cache: CacheSnapshot = CACHE

    def snapshot(self) -> EngineSnapshot:
        """Return the snapshot."""
        return EngineSnapshot(self.obstacle, self.queued, self.devices, self.cache)


def device(number: int, **values: Any) -> DeviceSnapshot:
    """Snapshot of a device that did nothing, but for the values given."""
    nothing = {
        "kind": "cpu",
        "platform": "cpu",
        "state": "ready",
        "requests_under_way": 0,
        "launches": 0,
        "requests": 0,
        "rows": 0,
        "failures": 0,
        "restarts": 0,
        "compute_seconds": 0.0,
        "memory_used_bytes": None,
        "memory_limit_bytes": None,
    }
    return DeviceSnapshot(id=number, **{**nothing, **values})
