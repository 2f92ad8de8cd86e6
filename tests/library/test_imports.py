"""Importing is silent and starts nothing; first calls are silent and leave their kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import segops

FIRST_CALL = """
import json, sys, time
start = time.perf_counter()
import numpy as np, segops
imported = time.perf_counter()
value = segops.segmented_sum(np.float32([1, 2, 4]), np.array([0, 0, 2]), 3)
assert value.tolist() == [3, 0, 4], value
report = {"import": imported - start, "call": time.perf_counter() - imported}
with open(sys.argv[1], "w") as file:
    json.dump(report, file)
"""

EVERY_ORDER = """
import jax, numpy as np, segops
x, idx = np.ones((5, 3), np.float32), np.array([1, 0, 1, 2, 7])
for name in ("segmented_sum", "segmented_mean", "segmented_rms_norm"):
    segops.hvp(name, x, idx, 3, tangents={"x": x})
    segops.value_and_vjp(name, x, np.sort(idx), 3, indices_are_sorted=True)
segops.hvp("segmented_dot", x, x, idx, 3, tangents={"x": x})
segops.hvp("segmented_mul", x, np.ones(3, np.float32), idx, 3, tangents={"x": x})
segops.hvp("segmented_matvec", x, np.ones((3, 3, 3), np.float32), idx, 3, tangents={"v": x})
"""

IMPORT_ALONE = """
import sys, segops
import jax, warp
from jax.extend import backend
assert warp._src.context.runtime is None, "Warp's runtime was started"
assert not jax._src.xla_bridge._backends, "a JAX backend was started"
assert not [name for name in sys.modules if name.startswith(("fastapi", "msgpack", "torch"))]
"""

THREADS = """
import os, sys, threading
import numpy as np, segops, warp
x, idx = np.ones((5, 3), np.float32), np.array([1, 0, 1, 2, 7])
y, m = np.ones(3, np.float32), np.ones((3, 3, 3), np.float32)
calls = [
    lambda: segops.segmented_sum(x, idx, 3),
    lambda: segops.segmented_mean(x, np.sort(idx), 3, indices_are_sorted=True),
    lambda: segops.segmented_mul(x, y, idx, 3),
    lambda: segops.segmented_matvec(x.astype("f4"), m, idx, 3),
    lambda: segops.value_and_vjp("segmented_rms_norm", x, idx, 3),
    lambda: segops.segmented_dot(x, x, idx, 3),
]
level, barrier, failures = warp.config.log_level, threading.Barrier(len(calls)), []
def start(call):
    barrier.wait()
    try:
        call()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=start, args=(call,)) for call in calls]
[t.start() for t in threads]
[t.join() for t in threads]
assert not failures, failures
assert warp.config.log_level == level, "Warp's log level was left changed"
os.write(2, b"stderr is whole")
"""


def python(code: str, cache: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process with its own kernel cache."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SEGOPS_", "XLA_", "JAX_"))}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=kept | {"WARP_CACHE_PATH": str(cache), "JAX_PLATFORMS": "cpu"},
        cwd=Path(segops.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_silent(run: subprocess.CompletedProcess[str]) -> None:
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def files(cache: Path) -> dict[str, int]:
    """Return the kernel cache's files and when each was written."""
    return {
        str(path.relative_to(cache)): path.stat().st_mtime_ns
        for path in cache.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.mkdir()
    return path


def test_import_says_nothing_and_starts_nothing(cache):
    assert_silent(python(IMPORT_ALONE, cache))
    assert not files(cache)


def test_public_names_are_the_promised_ones():
    names = ["sum", "mean", "rms_norm", "dot", "mul", "matvec"]
    errors = {"ArgumentError", "ArgumentTypeError", "ArgumentValueError", "SegmentIdError"}
    derivatives = {"value_and_vjp", "jvp", "hvp", "check_segment_ids"}
    assert set(segops.__all__) == {f"segmented_{n}" for n in names} | errors | derivatives
    assert all(getattr(segops, name).__doc__ for name in segops.__all__)
    assert segops.__version__[0].isdigit()


def test_first_calls_say_nothing_and_leave_kernels_for_the_next_process(cache, tmp_path):
    report = tmp_path / "report.json"
    assert_silent(python(FIRST_CALL, cache, report))
    first, compiled = json.loads(report.read_text()), files(cache)
    assert compiled
    assert_silent(python(FIRST_CALL, cache, report))
    second = json.loads(report.read_text())
    print(f"import and first call, fresh cache: {first}, kept cache: {second}")
    assert files(cache) == compiled
    assert second["call"] < 60


def test_derivatives_of_every_operation_reuse_the_kernels(cache):
    assert_silent(python(EVERY_ORDER, cache))
    compiled = files(cache)
    assert_silent(python(EVERY_ORDER, cache))
    assert files(cache) == compiled


def test_first_calls_from_several_threads_leave_the_process_whole(cache):
    run = python(THREADS, cache)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "stderr is whole")


def test_processes_that_start_together_share_a_fresh_cache(cache, tmp_path):
    env = os.environ | {"WARP_CACHE_PATH": str(cache), "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_CALL, str(tmp_path / f"{k}.json")],
            env=env,
            cwd=Path(segops.__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(2)
    ]
    for process in started:
        output, _ = process.communicate(timeout=300)
        assert (process.returncode, output) == (0, "")
