"""What the figures of the service were measured with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from benchmarks import machine

_SERVER = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "msgspec")
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def about() -> dict[str, str]:
    """Return date, machine and versions, those of the server's packages included."""
    with _leaving_the_memory():
        return {**machine.describe(), **{name: metadata.version(name) for name in _SERVER}}


@contextmanager
def _leaving_the_memory() -> Iterator[None]:
    """Take none of a GPU's memory, which the servers need, to ask what the GPU is called."""
    before = os.environ.get(_PREALLOCATE)
    os.environ[_PREALLOCATE] = "false"
    try:
        yield
    finally:
        del os.environ[_PREALLOCATE]
        if before is not None:
            os.environ[_PREALLOCATE] = before
