"""What came out, as text."""

import statistics

import numpy as np

from .batch import Batch
from .check import SCALES, Run, largest_rows
from .quantities import Quantities

SHOWN = ("Li", "LiH", "H2O", "CO2", "CH4", "CF4", "CH3COF", "CH3CH2OH", "C6H6", "trans-butane")
HEADER = (
    f"{'':13}{'':12}{'centre of mass':^30}{'radius of':>11}{'trace of':>13}{'bond':>12}"
    f"{'largest':>12}{'net':>10}{'largest':>13}\n"
    f"{'':13}{'':12}{'x':>9}{'y':>10}{'z':>10} {'gyration':>11}{'inertia':>13}{'energy':>12}"
    f"{'force':>12}{'force':>10}{'|H t|':>13}\n"
    f"{'molecule':13}{'':12}{'Å':>9}{'Å':>10}{'Å':>10} {'Å':>11}{'amu Å²':>13}{'eV':>12}"
    f"{'eV/Å':>12}{'eV/Å':>10}{'eV/Å':>13}"
)


def summary(batch: Batch, runs: list[Run]) -> str:
    """Say how much was computed and how long it took."""
    sizes = (
        f"{batch.num_atoms} atoms and {batch.num_bonds} bonds in {batch.num_molecules} molecules,"
        " one batch"
    )
    return "\n".join([sizes, *map(_times, runs)])


def _times(run: Run) -> str:
    return (
        f"{run.dtype}: {len(run.seconds)} calls, median round trip"
        f" {statistics.median(run.seconds) * 1e3:.2f} ms, {sum(run.seconds) * 1e3:.1f} ms"
        f" together; the first time {sum(run.first_seconds):.2f} s with compilation"
    )


def molecules(batch: Batch, runs: list[Run], reference: Quantities) -> str:
    """Show some molecules: each run's results above the reference."""
    sources = {run.dtype: run.quantities for run in runs} | {"ase, NumPy": reference}
    lines = [
        f"{name if row == 0 else '':13}{source:12}{_row(batch, found, batch.names.index(name))}"
        for name in SHOWN
        for row, (source, found) in enumerate(sources.items())
    ]
    return "\n".join(["", HEADER, *lines])


def _row(batch: Batch, found: Quantities, index: int) -> str:
    x, y, z = np.round(found.centre_of_mass[index], 6) + 0.0  # no -0
    force, product = (
        largest_rows(batch, rows)[index] for rows in (found.forces, found.hessian_product)
    )
    net = np.linalg.norm(found.net_force[index])
    return (
        f"{x:9.6f} {y:9.6f} {z:9.6f} {found.radius_of_gyration[index]:11.7f}"
        f"{found.inertia_trace[index]:13.6f}{found.energy[index]:12.7f}{force:12.7f}{net:10.1e}"
        f"{product:13.6f}"
    )


def deviations(batch: Batch, runs: list[Run]) -> str:
    """Show the largest deviation of each quantity over all molecules, and in which it is."""
    bounds = "".join(f"{f'{run.dtype}, at most {run.bound:g}':<32}" for run in runs)
    lines = ["", f"{'largest deviation':20}{'relative to':31}{bounds}"]
    for name, scale in SCALES.items():
        cells = "".join(f"{_worst(batch, run, name):<32}" for run in runs)
        lines.append(f"{name.replace('_', ' '):20}{scale:31}{cells}".rstrip())
    return "\n".join(lines)


def _worst(batch: Batch, run: Run, name: str) -> str:
    found = run.deviations[name]
    worst = int(np.argmax(found))  # NaN counts as the largest
    verdict = "" if found[worst] <= run.bound else "  TOO LARGE"
    return f"{found[worst]:.1e} ({batch.names[worst]}){verdict}"
