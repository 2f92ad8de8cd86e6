"""One engine and one server for the tests of this directory."""

from collections.abc import Iterator

import httpx
import jax
import pytest

from segops_service import Engine, Settings
from tests.service.helpers import Process, process, serving


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    """A started engine; it turns on x64 for the process, which is undone afterwards."""
    before = jax.config.jax_enable_x64
    engine = Engine("cpu")
    engine.start().result()
    assert engine.obstacle is None
    yield engine
    engine.stop()
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="package")
def client(engine: Engine) -> Iterator[httpx.Client]:
    """Client of a server with the default settings."""
    with serving(Settings(), engine) as client:
        yield client


@pytest.fixture(scope="package")
def server() -> Iterator[Process]:
    """A ready server in a process of its own."""
    with process(SEGOPS_PORT="1", JAX_LOGGING_LEVEL="INFO") as server:
        server.wait_until_ready()
        yield server
