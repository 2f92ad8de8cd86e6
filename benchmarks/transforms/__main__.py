"""Entry point of ``python -m benchmarks.transforms``."""

import argparse
import sys
from pathlib import Path

import jax

from benchmarks import libraries
from benchmarks.transforms import document
from benchmarks.transforms.cells import TRANSFORMS
from benchmarks.transforms.dense import SEGMENTS
from benchmarks.transforms.isolation import outcomes
from benchmarks.transforms.outcome import Outcome

DOCUMENT = Path(__file__).parents[2] / "docs" / "transforms.md"


def main() -> int:
    """Measure, print or write the table, and return 1 if a cell of ours is not right."""
    options = _parse()
    installed = [library.name for library in libraries.find()]
    chosen = [name for name in options.libraries or installed if name in installed]
    if "nvalchemi" not in installed:
        print(libraries.PEER_HINT, file=sys.stderr)
    results: dict[tuple[str, str], list[Outcome]] = {}
    for key in ((name, op) for name in chosen for op in libraries.OPS):
        print(*key, file=sys.stderr, flush=True)
        results[key] = list(outcomes(*key, list(TRANSFORMS)))
    text = document.render(results, SEGMENTS, on_cpu=jax.default_backend() == "cpu")
    if options.write:
        DOCUMENT.write_text(text + "\n")
    else:
        print(text)
    ours = [
        outcome for (name, _), found in results.items() if name == "segops" for outcome in found
    ]
    return int(any(outcome.kind not in ("right", "not linear") for outcome in ours))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transforms")
    parser.add_argument("--libraries", nargs="+", help="of the installed ones; all by default")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name} in docs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
