"""The make targets: what they install, when they skip it, and what they say to an old Python."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


def make(
    root: Path, *arguments: str, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    environment["PATH"] = path
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv as `make test` leaves it, stamps only."""
    folder = tmp_path / "venv"
    folder.mkdir()
    later = time.time() + 60
    for step, stamp in enumerate((python_stamp(), ".runtime", ".dev")):
        (folder / stamp).touch()
        os.utime(folder / stamp, (later + step, later + step))
    return folder


def python_stamp() -> str:
    return f".python-{sys.version_info.major}.{sys.version_info.minor}"


def planned(root: Path, venv: Path, *arguments: str) -> str:
    chosen = [f"VENV={venv}", f"PYTHON={sys.executable}", "CUDA=", *arguments]
    done = make(root, "--dry-run", *chosen)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_second_run_installs_nothing(root: Path, venv: Path) -> None:
    plan = planned(root, venv, "test")
    assert "pytest" in plan
    assert "pip install" not in plan


def test_changed_requirements_are_installed(root: Path, venv: Path) -> None:
    os.utime(venv / python_stamp(), (0, 0))
    os.utime(venv / ".runtime", (1, 1))
    plan = planned(root, venv, "test")
    assert "--constraint constraints.txt" in plan
    assert "-m venv" not in plan


def test_another_interpreter_gets_a_fresh_venv(root: Path, venv: Path) -> None:
    (venv / python_stamp()).rename(venv / ".python-3.99")
    plan = planned(root, venv, "test")
    assert f"{sys.executable} -m venv --clear" in plan
    assert "pip install" in plan


def test_cuda_libraries_are_installed_when_asked_for(root: Path, venv: Path) -> None:
    assert ".[cuda13]" in planned(root, venv, "serve", "CUDA=13")


@pytest.mark.parametrize(("exit_code", "installed"), [(0, ".[cuda13]"), (9, "'.'")])
def test_cuda_libraries_are_installed_where_there_is_a_gpu(
    root: Path, tmp_path: Path, exit_code: int, installed: str
) -> None:
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    nvidia_smi.chmod(0o755)
    chosen = ["--dry-run", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    done = make(root, *chosen, "serve", path=f"{tmp_path}:{os.environ['PATH']}")
    assert installed in done.stdout


def test_serve_needs_no_developer_tools(root: Path, tmp_path: Path) -> None:
    plan = planned(root, tmp_path / "venv", "serve")
    assert "segops-service serve --host 127.0.0.1 --port 8000" in plan
    assert "[dev]" not in plan


def test_the_fuzzer_is_installed_for_fuzzing_alone(root: Path, venv: Path) -> None:
    plan = planned(root, venv, "fuzz", "FUZZ_SECONDS=7")
    assert ".[fuzz]" in plan
    assert "-m tests.fuzz 7" in plan
    (venv / ".fuzz").touch()
    os.utime(venv / ".fuzz", (2**32, 2**32))
    assert "pip install" not in planned(root, venv, "fuzz")
    assert "[fuzz]" not in planned(root, venv.with_name("fresh"), "test")


def test_old_python_is_told_what_is_needed(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    code = "import sys; sys.version_info = (3, 10, 0); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    old.chmod(0o755)
    done = make(root, "serve", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "is 3.10" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_missing_python_is_told_apart_from_an_old_one(root: Path, tmp_path: Path) -> None:
    done = make(root, "serve", f"VENV={tmp_path / 'venv'}", f"PYTHON={tmp_path / 'nowhere'}")
    assert done.returncode != 0
    assert "is not found" in done.stderr


def test_ci_runs_what_a_developer_runs(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert {"make lint", "make test"} <= set(lines)


def test_help_lists_every_target(root: Path) -> None:
    shown = make(root).stdout
    (phony,) = (
        line for line in (root / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")
    )
    for target in phony.removeprefix(".PHONY:").split():
        assert f"  {target} " in shown
