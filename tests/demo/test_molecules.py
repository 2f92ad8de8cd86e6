"""The molecules example: its program, its reference, and whether its checks can fail."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import segops
from examples.molecules_demo.batch import Batch, load_g2
from examples.molecules_demo.check import BOUNDS, SCALES, passed, run
from examples.molecules_demo.plot import shape_anisotropy
from examples.molecules_demo.quantities import Quantities
from examples.molecules_demo.reference import bond_model, one_by_one
from examples.molecules_demo.server import serving

# ase 3.29 reads its collections in a way that NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Setting the shape on a NumPy array:DeprecationWarning"
)

ROOT = Path(__file__).parents[2]
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
FUNCTIONS = (
    "segmented_sum",
    "segmented_mean",
    "segmented_dot",
    "segmented_rms_norm",
    "segmented_mul",
    "segmented_matvec",
    "value_and_vjp",
    "jvp",
    "hvp",
)
WRONG_DOT = """
import segops

right = segops.segmented_dot
segops.segmented_dot = lambda *args, **options: right(*args, **options) * 1.00001
"""


@pytest.fixture(scope="module")
def batch() -> Batch:
    return load_g2()


@pytest.fixture(scope="module")
def reference(batch: Batch) -> Quantities:
    return one_by_one(batch)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


def test_the_example_passes_in_process(tmp_path: Path) -> None:
    completed = _molecules("--local", "--plot", str(tmp_path / "plot.png"))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    _assert_whole_report(completed.stdout)
    _assert_image(tmp_path / "plot.png")


def test_the_example_passes_on_a_server_that_it_starts(tmp_path: Path) -> None:
    completed = _molecules("--serve", "--plot", str(tmp_path / "plot.png"))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    _assert_whole_report(completed.stdout)
    _assert_image(tmp_path / "plot.png")


def test_the_example_passes_on_a_running_server_without_jax(url: str, tmp_path: Path) -> None:
    for forbidden in ("jax", "warp", "segops"):
        (tmp_path / f"{forbidden}.py").write_text(f"raise ImportError('{forbidden}')\n")
    completed = _molecules("--url", url, "--plot", str(tmp_path / "plot.png"), first=tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    _assert_whole_report(completed.stdout)
    assert completed.stderr == ""


def test_a_server_that_is_not_there_is_named_and_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "http://{}:{}".format(*listener.getsockname())
    completed = _molecules("--url", address)
    assert completed.returncode == 2
    assert address in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_deviation_over_its_bound_is_shown_and_fails(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG_DOT)
    plot = tmp_path / "plot.png"
    completed = _molecules("--local", "--plot", str(plot), first=tmp_path)
    assert completed.returncode == 1, completed.stdout + completed.stderr
    (wrong,) = (line for line in completed.stdout.splitlines() if "TOO LARGE" in line)
    assert wrong.startswith("inertia trace")
    assert wrong.count("TOO LARGE") == 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_is_slightly_wrong_is_found_out(
    function: str, batch: Batch, reference: Quantities
) -> None:
    wrong = SimpleNamespace(**{name: getattr(segops, name) for name in FUNCTIONS})
    setattr(wrong, function, _too_large(getattr(segops, function)))
    assert not passed([run(wrong, batch, reference, "float32")])


def test_a_result_that_is_no_number_is_found_out(batch: Batch, reference: Quantities) -> None:
    wrong = SimpleNamespace(**{name: getattr(segops, name) for name in FUNCTIONS})
    wrong.segmented_dot = lambda *args, **options: segops.segmented_dot(*args, **options) * np.nan
    assert not passed([run(wrong, batch, reference, "float32")])


def test_the_bounds_are_those_promised() -> None:
    assert BOUNDS == {"float32": 1e-6, "float64": 1e-12}


def test_reference_forces_are_the_slope_of_the_energy(batch: Batch, reference: Quantities) -> None:
    step, along = 1e-5, batch.displacement
    ahead, behind = (_bonds_at(batch, batch.positions + sign * step * along) for sign in (1, -1))
    slope = (ahead[0] - behind[0]) / (2 * step)
    np.testing.assert_allclose(-np.sum(reference.forces * along), slope, rtol=1e-8)


def test_the_reference_hessian_product_is_the_change_of_the_forces(
    batch: Batch, reference: Quantities
) -> None:
    step, along = 1e-5, batch.displacement
    ahead, behind = (_bonds_at(batch, batch.positions + sign * step * along) for sign in (1, -1))
    change = (ahead[1] - behind[1]) / (2 * step)
    largest = np.abs(reference.hessian_product).max()
    np.testing.assert_allclose(reference.hessian_product, change, rtol=0, atol=1e-8 * largest)


def test_the_reference_radius_agrees_with_the_inertia_by_ase(
    batch: Batch, reference: Quantities
) -> None:
    masses = np.array([atoms.get_masses().sum() for atoms in batch.structures])
    from_inertia = np.sqrt(reference.inertia_trace / (2 * masses))
    np.testing.assert_allclose(reference.radius_of_gyration, from_inertia, rtol=1e-14)


def test_the_batch_has_every_molecule_and_bonds_every_atom_within_its_own(batch: Batch) -> None:
    assert (batch.num_molecules, batch.num_atoms) == (162, 860)
    bonded = np.union1d(batch.first, batch.second)
    lonely = [name for name, size in zip(batch.names, batch.sizes, strict=True) if size == 1]
    assert batch.num_atoms - len(bonded) == len(lonely)
    assert (batch.molecule[batch.first] == batch.molecule[batch.second]).all()


def test_a_rod_a_ring_and_a_ball_have_their_anisotropy() -> None:
    rod, ring, ball = [0.0, 1.0, 1.0], [1.0, 1.0, 2.0], [1.0, 1.0, 1.0]
    anisotropy = shape_anisotropy(np.array([rod, ring, ball]))
    np.testing.assert_allclose(anisotropy, [1, 0.25, 0], atol=1e-15)


def _molecules(*options: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the example as a user does; modules in ``first`` hide installed ones."""
    paths = [str(first)] if first else []
    paths += [path for path in [os.environ.get("PYTHONPATH")] if path]
    return subprocess.run(
        [sys.executable, "examples/molecules.py", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _assert_whole_report(report: str) -> None:
    assert "860 atoms and 715 bonds in 162 molecules" in report
    assert report.count("median round trip") == len(BOUNDS)
    assert re.search(r"CH3CH2OH +float32 .*\n +float64 .*\n +ase, NumPy ", report)
    for name in SCALES:
        row = re.search(rf"^{name.replace('_', ' ')} .*$", report, re.MULTILINE)
        assert row
        found = map(float, re.findall(r"(\S+) \(\S+\)", row[0]))
        for deviation, bound in zip(found, BOUNDS.values(), strict=True):
            assert deviation <= bound


def _assert_image(path: Path) -> None:
    image = path.read_bytes()
    width, height = (int.from_bytes(image[start : start + 4]) for start in (16, 20))
    assert image.startswith(PNG_SIGNATURE)
    assert width * height > 1e6


def _too_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with arrays that are a little too large."""

    def wrong(*args: Any, **options: Any) -> Any:
        return scaled(function(*args, **options))

    def scaled(answer: Any) -> Any:
        if isinstance(answer, tuple):
            return tuple(map(scaled, answer))
        if isinstance(answer, dict):
            return {name: scaled(array) for name, array in answer.items()}
        return answer * np.float32(1 + 1e-5)

    return wrong


def _bonds_at(batch: Batch, positions: np.ndarray) -> tuple[float, np.ndarray]:
    pairs = np.stack([batch.first, batch.second], axis=1)
    energy, gradient, _ = bond_model(positions, pairs, batch.rest_length)
    return energy, gradient
