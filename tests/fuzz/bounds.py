"""Bounds on what one input may cost."""

import re
import resource
from pathlib import Path

MEMORY = 2**30
"""Bytes that a search may take beyond what its libraries have."""

SECONDS = 5
"""Time for one input."""


def bound_memory() -> None:
    """Let the process take `MEMORY` more than it has; past that there is a ``MemoryError``."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    limit = int(found[1]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
