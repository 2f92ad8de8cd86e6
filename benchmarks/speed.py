"""Times of the six ops, their VJPs and HVPs beside the ``jax.ops`` composition and the peer.

Every library's result is compared with the composition in float64 before anything is timed.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks import libraries, machine, problems, programs, table
from benchmarks.libraries import Library
from benchmarks.problems import Problem
from benchmarks.timing import interleave

Array = NDArray[np.floating]

SIZES = (1_000, 100_000, 1_000_000)
TOLERANCE = 1e-4
"""Largest deviation from float64, relative to the largest number of the result."""


@dataclass(frozen=True)
class Measurement:
    """Times of one library on one problem."""

    library: str
    op: str
    quantity: str
    n: int
    num_segments: int
    order: str
    median_s: float
    min_s: float
    samples: int
    deviation: float

    @property
    def is_right(self) -> bool:
        """Whether the result agreed with float64 before it was timed."""
        return self.deviation <= TOLERANCE


def measure(
    found: Sequence[Library], problem: Problem, quantity: str, seconds: float
) -> list[Measurement]:
    """Check and time every library on one problem."""
    arguments = _on_device(problem, np.float32)
    built = {library.name: programs.build(library, problem, quantity) for library in found}
    right = _in_float64(problem, quantity)
    deviations = {name: _deviation(run(*arguments), right) for name, run in built.items()}
    calls = {name: partial(run, *arguments) for name, run in built.items()}
    return [
        Measurement(
            name,
            problem.op,
            quantity,
            len(problem.idx),
            problem.num_segments,
            problem.order,
            statistics.median(times),
            min(times),
            len(times),
            deviations[name],
        )
        for name, times in interleave(calls, seconds).items()
    ]


def _on_device(
    problem: Problem, dtype: type[np.floating]
) -> tuple[programs.Operands, programs.Operands, jax.Array]:
    operands, tangents = (
        tuple(jnp.asarray(u, dtype) for u in group)
        for group in (problem.operands, problem.tangents)
    )
    return operands, tangents, jnp.asarray(problem.idx)


def _in_float64(problem: Problem, quantity: str) -> list[Array]:
    with jax.enable_x64(True):
        run = programs.build(libraries.jax_ops(), problem, quantity)
        return _leaves(run(*_on_device(problem, np.float64)))


def _leaves(result: object) -> list[Array]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]


def _deviation(result: object, right: list[Array]) -> float:
    pairs = zip(_leaves(result), right, strict=True)
    return float(np.max([np.max(np.abs(got - want)) / np.max(np.abs(want)) for got, want in pairs]))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables and return 1 if a result of ours is wrong."""
    options = _parse(argv)
    found = libraries.find()
    about = machine.describe()
    print(table.heading(about, found))
    measurements = []
    for n, order in ((n, order) for n in options.sizes for order in options.order):
        print(table.columns(n, order, [library.name for library in found]), flush=True)
        for op, quantity in ((op, q) for op in options.ops for q in options.quantities):
            row = measure(found, problems.make(op, n, order), quantity, options.seconds)
            measurements += row
            print(table.row(row), flush=True)
    print(table.summary(measurements))
    if options.json:
        _write(options.json, about, measurements)
    return int(any(m.library == "segops" and not m.is_right for m in measurements))


def _write(path: Path, about: dict[str, str], measurements: Iterable[Measurement]) -> None:
    record = {"machine": about, "measurements": [asdict(m) for m in measurements]}
    path.write_text(json.dumps(record, indent=1) + "\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--ops", nargs="+", choices=libraries.OPS, default=libraries.OPS)
    parser.add_argument("--sizes", nargs="+", type=_size, default=SIZES, help="rows, such as 1e5")
    parser.add_argument("--order", nargs="+", choices=problems.ORDERS, default=problems.ORDERS)
    parser.add_argument(
        "--quantities", nargs="+", choices=programs.QUANTITIES, default=programs.QUANTITIES
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="per library and row")
    parser.add_argument("--quick", action="store_true", help="few samples: a check, not a figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(argv)
    if options.quick:
        options.seconds = 0
    return options


def _size(text: str) -> int:
    return int(float(text))


if __name__ == "__main__":
    sys.exit(main())
