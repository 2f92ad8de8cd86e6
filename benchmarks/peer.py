"""The peer: ``nvalchemi-toolkit-ops``, segment ops for JAX in Warp kernels too.

Its JAX layer asks Warp to capture every call in a CUDA graph, which Warp refuses on the CPU. The
mode is an argument of ``warp.jax_callable`` that the layer fills in while it is imported, and no
setting reaches it. So that function is replaced during the import, and on the CPU only, by one
that asks for no capture; the peer's own code runs unchanged. On a GPU nothing is replaced.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import warp as wp

DISTRIBUTION = "nvalchemi-toolkit-ops"
_MODULE = "nvalchemiops.jax.segment_ops"


def load() -> ModuleType:
    """Import the peer's segment ops so that they run on JAX's default backend."""
    if jax.default_backend() != "cpu":
        return importlib.import_module(_MODULE)
    with _without_graph_capture():
        return importlib.import_module(_MODULE)


@contextmanager
def _without_graph_capture() -> Iterator[None]:
    original = wp.jax_callable

    def uncaptured(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "graph_mode": wp.JaxCallableGraphMode.NONE})

    wp.jax_callable = uncaptured
    try:
        yield
    finally:
        wp.jax_callable = original
