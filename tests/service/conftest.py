"""One engine and one server for the tests of this directory."""

from collections.abc import Iterator

import httpx
import jax
import pytest

from segops_service import Settings
from tests.service.helpers import Process, Running, process, running, serving


@pytest.fixture(scope="package", autouse=True)
def x64() -> Iterator[None]:
    """Undo the x64 mode that engines turn on for the process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="package")
def engine() -> Iterator[Running]:
    """A running engine."""
    with running() as engine:
        yield engine


@pytest.fixture(scope="package")
def client() -> Iterator[httpx.Client]:
    """Client of a server with the default settings."""
    with serving(Settings()) as client:
        yield client


@pytest.fixture(scope="package")
def server() -> Iterator[Process]:
    """A ready server in a process of its own."""
    with process(SEGOPS_PORT="1", JAX_LOGGING_LEVEL="INFO") as server:
        server.wait_until_ready()
        yield server
