"""What the service's log says of the requests: one JSON line each."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any


def lines(log: Path, offset: int = 0) -> Iterator[Mapping[str, Any]]:
    """Read the lines that are JSON objects, from a position in the file on."""
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if line.startswith(b"{"):
                yield json.loads(line)


def stages(log: Path, op: str, offset: int = 0) -> dict[str, float]:
    """Return the median milliseconds of each stage, over the answered requests of an op."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines(log, offset):
        if line.get("op") == op and line.get("status") == 200:
            for stage, spent in line["stages"].items():
                found[stage].append(spent)
    return {stage: median(spent) for stage, spent in found.items()}


def tracebacks(log: Path) -> int:
    """Count the lines that hold a traceback, or begin one."""
    with log.open("rb") as file:
        return sum(b"Traceback (most recent call last)" in line for line in file)
