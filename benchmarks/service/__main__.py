"""Entry point of ``python -m benchmarks.service``."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.service import drain, large, shapes, small, start
from benchmarks.service.about import about
from benchmarks.service.oracle import OPERANDS
from benchmarks.service.problems import WANTS

_Part = tuple[ModuleType, Callable[[argparse.Namespace], Iterable[Any]]]

PARTS: Mapping[str, _Part] = {
    "small": (
        small,
        lambda o: (small.measure(o.rounds, o.seconds, level) for level in ("info", "warning")),
    ),
    "large": (large, lambda o: large.measure(o.rounds, o.seconds, o.rows)),
    "shapes": (shapes, lambda o: (shapes.measure(m, o.requests, o.op, o.want) for m in o.modes)),
    "drain": (drain, lambda o: [drain.measure(o.drains)]),
    "start": (start, lambda o: start.measure(o.starts)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and return 1 if the service did anything wrong."""
    options = _parse(argv)
    description = about()
    print("\n".join(f"{name:>22}: {value}" for name, value in description.items()))
    record: dict[str, Any] = {"machine": description}
    is_wrong = False
    for name in PARTS if options.part == "all" else (options.part,):
        module, measure = PARTS[name]
        print(f"\n{module.__doc__}", flush=True)
        record[name] = []
        for figures in measure(options):
            record[name].append(asdict(figures))
            print("\n".join((str(figures), *(f"  WRONG: {fault}" for fault in figures.faults))))
            is_wrong |= bool(figures.faults)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(is_wrong)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service")
    parser.add_argument("part", nargs="?", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=9, help="small, large: of each server")
    parser.add_argument("--seconds", type=float, default=2, help="small, large: of each round")
    parser.add_argument("--rows", type=int, default=large.ROWS, help="large: of the problem")
    parser.add_argument("--requests", type=int, default=2000, help="shapes: of each mode")
    parser.add_argument("--modes", nargs="+", choices=shapes.MODES, default=[*shapes.MODES])
    parser.add_argument("--op", choices=OPERANDS, default="segmented_sum", help="shapes")
    parser.add_argument("--want", nargs="+", choices=WANTS, default=("value",), help="shapes")
    parser.add_argument("--drains", type=int, default=20)
    parser.add_argument("--starts", type=int, default=5, help="start: of each kind of settings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
