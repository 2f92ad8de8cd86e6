"""Shared by the library's tests: float64, no promotion in silence, a mesh of CPU devices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

STRICT = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}


@pytest.fixture(scope="module", autouse=True)
def strict_jax() -> Iterator[None]:
    """Set JAX's strict modes for this directory alone; other tests may share the process."""
    before = {name: getattr(jax.config, name) for name in STRICT}
    _configure(STRICT)
    yield
    _configure(before)
    jax.clear_caches()  # each module compiles hundreds of programs, which would stay in memory


def _configure(values: dict[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)


@pytest.fixture(params=["eager", "jit"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what turns a function into the one to call: itself, or itself under `jax.jit`."""
    return jax.jit if request.param == "jit" else lambda function: function


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    """Four CPU devices in a row."""
    devices = jax.devices("cpu")
    assert len(devices) >= 4, "XLA_FLAGS asks for fewer devices or came after JAX's start"
    return jax.sharding.Mesh(np.array(devices[:4]), ("d",))
