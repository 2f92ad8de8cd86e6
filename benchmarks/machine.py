"""What the figures were measured with."""

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import jax

_DISTRIBUTIONS = ("segops-jax", "jax", "jaxlib", "warp-lang", "numpy", "nvalchemi-toolkit-ops")


def describe() -> dict[str, str]:
    """Return date, machine and versions, in the order they are printed."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{_cpu_model()}, {_cores()} cores",
        "device": jax.devices()[0].device_kind,
        "load": f"{os.getloadavg()[0]:.1f} (1 minute average at the start)",
        "python": platform.python_version(),
        **versions(),
    }


def versions() -> dict[str, str]:
    """Return the installed version of every package that takes part."""
    return {name: version for name in _DISTRIBUTIONS if (version := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
