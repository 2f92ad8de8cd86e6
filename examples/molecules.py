"""The 162 molecules of the G2 set in one batch, through segment operations, checked.

Centre of mass, radius of gyration, moments of inertia, and the energy, forces and a Hessian-vector
product of a harmonic bond model are computed for all molecules at once, in float32 and in float64,
and compared with ase and NumPy, molecule by molecule in float64.

    python examples/molecules.py                # starts a server, computes there, stops it
    python examples/molecules.py --url URL      # on a server that runs
    python examples/molecules.py --local        # in this process

The exit code is 1 if anything deviates by more than its bound, and 2 if a server fails.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from molecules_demo import report
from molecules_demo.backends import Backend, connected, in_process, served
from molecules_demo.batch import Batch, load_g2
from molecules_demo.check import Run, passed, run
from molecules_demo.plot import save_plot
from molecules_demo.reference import one_by_one

from segops_client import SegopsError

DTYPES = ("float32", "float64")
PLOT = Path("build/molecules.png")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    batch = load_g2()
    try:
        runs = _runs(options, batch)
    except SegopsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    save_plot(batch, runs, options.plot)
    print(f"\nplot: {options.plot}")
    return 0 if passed(runs) else 1


def _runs(options: argparse.Namespace, batch: Batch) -> list[Run]:
    if options.local:
        place, backend = "this process", in_process()
    elif options.url:
        place, backend = options.url, connected(options.url)
    else:
        place, backend = "a server started for this", served()
    with backend as functions:
        print(f"computed by {place}\n")
        return examine(functions, batch)


def examine(functions: Backend, batch: Batch) -> list[Run]:
    """Compute with a backend in each dtype, compare, and print what came out."""
    reference = one_by_one(batch)
    runs = [run(functions, batch, reference, dtype) for dtype in DTYPES]
    print(report.summary(batch, runs))
    print(report.molecules(batch, runs, reference))
    print(report.deviations(batch, runs))
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--serve", action="store_true", help="start a server (the default)")
    where.add_argument("--url", help="address of a server that runs")
    where.add_argument("--local", action="store_true", help="compute in this process")
    parser.add_argument("--plot", type=Path, default=PLOT, help=f"image to write; default {PLOT}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
