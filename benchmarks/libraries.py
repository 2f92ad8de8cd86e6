"""What is compared: three libraries behind one calling convention."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

import jax

from benchmarks import composition, peer

OPS = ("sum", "mean", "dot", "rms_norm", "mul", "matvec")
PEER_HINT = (
    f"The peer is not installed, so its column is empty: pip install {peer.DISTRIBUTION}"
    " (the optional dependency group `bench`)."
)

Op = Callable[..., jax.Array]
"""An op called as ``op(*operands, idx, num_segments, is_sorted=...)``."""


@dataclass(frozen=True)
class Library:
    """One library's six ops."""

    name: str
    version: str
    ops: Mapping[str, Op]
    forward_mode: bool = True


def find() -> list[Library]:
    """Return the libraries that are installed, ours first."""
    found = [segops(), jax_ops()]
    if importlib.util.find_spec("nvalchemiops"):
        found.append(nvalchemi())
    return found


def segops() -> Library:
    """Return this repository's library."""
    import segops

    return Library("segops", segops.__version__, _ops(segops, _with_promise))


def jax_ops() -> Library:
    """Return the composition of JAX's own ops."""
    return Library("jax.ops", jax.__version__, _ops(composition, _as_is))


def nvalchemi() -> Library:
    """Return the peer, which differentiates in reverse mode alone."""
    version = metadata.version(peer.DISTRIBUTION)
    return Library("nvalchemi", version, _ops(peer.load(), _without_promise), forward_mode=False)


def _ops(module: ModuleType, adapt: Callable[[Op], Op]) -> dict[str, Op]:
    return {op: adapt(getattr(module, f"segmented_{op}")) for op in OPS}


def _as_is(op: Op) -> Op:
    return op


def _with_promise(op: Op) -> Op:
    return lambda *args, is_sorted: op(*args, indices_are_sorted=is_sorted)


def _without_promise(op: Op) -> Op:
    def adapted(*args: jax.Array | int, is_sorted: bool) -> jax.Array:
        del is_sorted
        return op(*args)

    return adapted
