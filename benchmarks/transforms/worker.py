"""A process that tries transforms on one op of one library: ``worker LIBRARY OP < names``.

It reads names of transforms, one a line, and answers each of them with outcomes as JSON lines as
soon as they are known, so that a crash loses no result before it.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks import libraries
from benchmarks.transforms import cells, dense
from benchmarks.transforms.outcome import Outcome
from benchmarks.transforms.subject import Subject, along

TOLERANCE = 1e-9
STEP = 1e-5

LIBRARIES: dict[str, Callable[[], libraries.Library]] = {
    "segops": libraries.segops,
    "jax.ops": libraries.jax_ops,
    "nvalchemi": libraries.nvalchemi,
}


def main() -> None:
    """Try the transforms named on the standard input."""
    library, op = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    right = Subject(op, dense.OPS[op])
    check_by_differences(right)
    # Each promise differs from library to library, so none is given.
    function = partial(LIBRARIES[library]().ops[op], is_sorted=False)
    subject = Subject(op, lambda *args: function(*args, dense.SEGMENTS))
    for transform in sys.stdin.read().splitlines():
        for outcome in try_cell(transform, subject, right):
            print(json.dumps(outcome.record()), flush=True)


def try_cell(transform: str, subject: Subject, right: Subject) -> list[Outcome]:
    """Return the outcomes outside and inside of ``jit``."""
    if transform == "linear_transpose" and not subject.linear_operands:
        return [Outcome(transform, jit, "not linear") for jit in (False, True)]
    want = cells.run(transform, right, jit=True)
    return [_judge(transform, subject, want, jit) for jit in (False, True)]


def _judge(transform: str, subject: Subject, want: Any, jit: bool) -> Outcome:
    try:
        got = jax.tree.map(np.asarray, cells.run(transform, subject, jit=jit))
    except Exception as error:  # whatever a library raises is what is being recorded
        message = str(error).strip().partition("\n")[0]
        return Outcome(transform, jit, "raises", type(error).__name__, message)
    deviation = _deviation(got, want)
    return Outcome(
        transform, jit, "right" if deviation <= TOLERANCE else "wrong", deviation=deviation
    )


def _deviation(got: Any, want: Any) -> float:
    """Return the largest deviation, as a multiple of the largest right number."""
    got, want = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (got, want))
    if [leaf.shape for leaf in got] != [leaf.shape for leaf in want]:
        return float("inf")
    scale = max(np.max(np.abs(leaf)) for leaf in want)
    return float(np.max([np.max(np.abs(g - w)) for g, w in zip(got, want, strict=True)]) / scale)


def check_by_differences(right: Subject) -> None:
    """Check the judge's own derivatives of orders 1 to 3 by central differences."""
    first, second, third = right.directions
    function: Callable[..., jax.Array] = right.loss
    for tangents in (first, second, third):
        slope = along(function, tangents)
        ahead, behind = (
            function(jax.tree.map(lambda u, t, h=h: u + h * t, right.operands, tangents))
            for h in (STEP, -STEP)
        )
        np.testing.assert_allclose(slope(right.operands), (ahead - behind) / (2 * STEP), rtol=1e-5)
        function = slope


if __name__ == "__main__":
    main()
