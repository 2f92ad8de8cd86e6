"""The document that holds the table."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from platform import python_version

from benchmarks import machine
from benchmarks.transforms.cells import TRANSFORMS
from benchmarks.transforms.outcome import Outcome, merge

Results = Mapping[tuple[str, str], Sequence[Outcome]]
"""Outcomes by library and op."""

_INTRODUCTION = """\
# Derivatives and transforms

These transforms of JAX work on every op of segops, outside and inside of `jit`. Each cell of the
segops column is a test in [tests/library](../tests/library).

The table is what `python -m benchmarks.transforms --write` measured, for segops, for the
composition of `jax.ops.segment_sum` with indexing, and for the JAX layer of
`nvalchemi-toolkit-ops`, whose ops bear the same names.

- Input: float64, vec3 rows, {segments} segments of which one is empty, ids sorted and in range
  (the peer's documentation asks for both), derivatives in all floating-point operands at once.
- Judge: the same transform of the op written as dense algebra with a matrix of ones and zeros,
  whose own derivatives of orders 1 to 3 are checked by central differences. A cell is *right* if
  eager and jitted results deviate by at most 1e-9 of the largest right number, and *wrong* if JAX
  gave numbers without an error; the share says by how much.
- The loss under `grad`, the nested Jacobians, `hessian` and the third orders is a weighted sum of
  the sine of the output; `jvp`, `jacfwd`, `jacrev`, `linear_transpose` and the `vmap`s of values
  act on the op itself.
- Every library and op ran in a process of its own. {peer_mode}
"""
_PEER_ON_CPU = """The peer ran on the CPU with its
  graph mode set to NONE ([how](../benchmarks/peer.py)), since its own choice is refused there."""
_PEER_ON_GPU = "The peer ran in its own graph mode."


def render(results: Results, segments: int, on_cpu: bool) -> str:
    """Return the document."""
    introduction = _INTRODUCTION.format(
        segments=segments, peer_mode=_PEER_ON_CPU if on_cpu else _PEER_ON_GPU
    )
    return "\n".join([introduction, _setting(), "", *_table(results), "", *_messages(results)])


def _setting() -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items())
    return f"Measured on {date.today().isoformat()} with Python {python_version()}, {versions}."


def _table(results: Results) -> Iterable[str]:
    peer = [key for key in results if key[0] == "nvalchemi"]
    own = [name for name in ("segops", "jax.ops") if any(key[0] == name for key in results)]
    head = ["transform", *own, *(f"peer: {op}" for _, op in peer)]
    yield _line(head)
    yield _line(["---"] * len(head))
    for transform in TRANSFORMS:
        together = [_together(results, name, transform) for name in own]
        yield _line([f"`{transform}`", *together, *(_cell(results[k], transform) for k in peer)])


def _together(results: Results, library: str, transform: str) -> str:
    """Return one cell for all ops of a library: what most of them give, and the exceptions."""
    cells = {
        op: _cell(found, transform) for (name, op), found in results.items() if name == library
    }
    texts = list(cells.values())
    common = max(dict.fromkeys(texts), key=texts.count)
    others = (f"{op}: {text}" for op, text in cells.items() if text != common)
    return "; ".join([common, *others])


def _cell(outcomes: Sequence[Outcome], transform: str) -> str:
    return merge([outcome for outcome in outcomes if outcome.transform == transform])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _messages(results: Results) -> Iterable[str]:
    """List each distinct exception with one message that it came with."""
    messages: dict[tuple[str, str], str] = {}
    for (library, _), outcomes in results.items():
        for outcome in outcomes:
            if outcome.message:
                messages.setdefault((library, outcome.error), outcome.message)
    if messages:
        yield "What the exceptions say, one message each:\n"
    for (library, error), message in messages.items():
        yield f"- {library}, `{error}`: {message}"
