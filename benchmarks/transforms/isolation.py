"""Running cells in processes of their own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from benchmarks.transforms.outcome import Outcome

SECONDS = 600


def outcomes(library: str, op: str, transforms: Sequence[str]) -> Iterator[Outcome]:
    """Yield the outcome of every cell; a crash costs the cell it happens in and no other."""
    pending = list(transforms)
    while pending:
        answers, failure = _run(library, op, pending)
        yield from answers
        done = {outcome.transform for outcome in answers}
        pending = [transform for transform in pending if transform not in done]
        if pending:
            yield from (Outcome(pending[0], jit, *failure) for jit in (False, True))
            del pending[0]


def _run(
    library: str, op: str, transforms: Sequence[str]
) -> tuple[list[Outcome], tuple[str, str, str]]:
    command = [sys.executable, "-m", "benchmarks.transforms.worker", library, op]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = worker.communicate("\n".join(transforms), SECONDS)
        failure = ("crashes", _end(worker.returncode), err.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        worker.kill()
        out, _ = worker.communicate()
        failure = ("hangs", "", f"no end within {SECONDS} s")
    return _whole(out), failure


def _whole(out: str) -> list[Outcome]:
    """Return the outcomes of the cells that were finished, eager and jitted."""
    answers = [Outcome(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    finished = {outcome.transform for outcome in answers if outcome.jit}
    return [outcome for outcome in answers if outcome.transform in finished]


def _end(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit {status}"
