"""Entry point of ``python -m benchmarks.soak``."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.service import server
from benchmarks.service.about import about
from benchmarks.service.log import tracebacks
from benchmarks.service.server import Server
from benchmarks.soak import load, probe, verdict
from benchmarks.soak.load import Load, Order
from benchmarks.soak.tally import Tally
from benchmarks.soak.verdict import Observed

_SAMPLE_SECONDS = 1.0
_SETTLE_SECONDS = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Soak a server, print the table and the verdict, and return 1 if it did not hold."""
    options = _parse(argv)
    description = about()
    print("\n".join(f"{name:>22}: {value}" for name, value in description.items()), flush=True)
    tally, observed = soak(options.seconds, options.clients, options.cases, options.seed)
    checks = verdict.checks(tally, observed)
    print(f"\n{verdict.table(tally)}\n{verdict.work(observed.status)}\n")
    print("\n".join(map(str, checks)))
    print("\n".join(["", *tally.examples]) if tally.examples else "")
    is_sound = all(check.passed is not False for check in checks)
    print("the service held" if is_sound else "THE SERVICE DID NOT HOLD")
    if options.json:
        outcomes = {f"{kind}: {what}": n for (kind, what), n in sorted(tally.outcomes.items())}
        record = {
            "machine": description,
            "outcomes": outcomes,
            "checks": [asdict(check) for check in checks],
            "memory": observed.memory,
            "status": observed.status,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(not is_sound)


def soak(seconds: float, clients: int, cases: int, seed: int) -> tuple[Tally, Observed]:
    """Run a server under the load for so long, watch it, and stop it."""
    with (
        server.service() as ours,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor,
    ):
        ours.wait_until_ready()
        executor.submit(probe.watch, ours.host, ours.port, 0).result()  # its process is there
        with load.running(Order(ours.host, ours.port, seconds, clients, cases, seed)) as running:
            running.wait_until_prepared()
            health = executor.submit(probe.watch, ours.host, ours.port, seconds)
            memory = _memory(ours, running)
            tally = running.tally()
        answered = health.result()
        status = _settled_status(ours)
        code = ours.stop()
        return tally, Observed(memory, answered, tracebacks(ours.log), status, code)


def _memory(ours: Server, running: Load) -> list[tuple[float, int]]:
    samples = []
    while not running.has_ended(_SAMPLE_SECONDS):
        samples.append((time.monotonic(), ours.rss_bytes))
    return samples


def _settled_status(ours: Server) -> dict[str, Any] | None:
    """Return what the server says of itself once what was abandoned is given up, or should be."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    try:
        while (status := ours.status())["queue"]["requests"] and time.monotonic() < deadline:
            time.sleep(0.1)
    except OSError:
        return None
    return status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=24, help="beside the slow ones")
    parser.add_argument("--cases", type=int, default=300, help="distinct sound requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
