"""Where the operations are computed: here or on a server.

The module ``segops`` and a client have functions of the same names and signatures, so the code that
uses them need not know which one it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from segops_client import Client

from .server import serving

Backend: TypeAlias = Any
"""The module `segops`, or a `segops_client.Client`."""


@contextmanager
def in_process() -> Iterator[Backend]:
    """Compute here; nothing else needs JAX."""
    import jax

    import segops

    jax.config.update("jax_enable_x64", True)
    yield segops


@contextmanager
def connected(url: str) -> Iterator[Backend]:
    """Compute on the server at an address."""
    with Client(url) as client:
        yield client


@contextmanager
def served() -> Iterator[Backend]:
    """Compute on a server that is started now and stopped in the end."""
    with serving() as url, connected(url) as client:
        yield client
