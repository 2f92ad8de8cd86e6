"""The client installs alone: a user without JAX gets everything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "clients" / "python"
CODE = """
import importlib.util, sys
import numpy as np
import segops_client
from segops_client import wire

assert not any(map(importlib.util.find_spec, ("jax", "jaxlib", "warp", "segops", "segops_service")))
assert not {"jax", "jaxlib", "warp"} & sys.modules.keys()
assert "site-packages" in segops_client.__file__
assert wire.unpackb(wire.packb({"x": np.ones(3)}))["x"].sum() == 3
print(segops_client.__version__)
"""


@pytest.mark.slow
def test_the_package_installs_and_works_in_an_environment_without_jax(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
        check=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    ran = subprocess.run(
        [python, "-I", "-c", CODE], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    version = (PACKAGE.parents[1] / "VERSION").read_text().strip()
    assert ran.stdout.strip() == version
