"""How far a computation lies from the reference, and whether that is near enough."""

from dataclasses import dataclass

import numpy as np

from .backends import Backend
from .batch import Batch, Floats
from .calls import Calls
from .quantities import Quantities, compute

BOUNDS = {"float32": 1e-6, "float64": 1e-12}

SCALES = {
    "centre_of_mass": "farthest atom from the origin",
    "radius_of_gyration": "itself",
    "inertia_trace": "itself",
    "principal_moments": "their sum",
    "energy": "itself",
    "forces": "largest force in the molecule",
    "net_force": "sum of the forces' norms",
    "hessian_product": "largest row in the molecule",
}
"""What a deviation in a molecule is relative to, of the reference."""


@dataclass(frozen=True)
class Run:
    """One dtype's computation and how it compares.

    Attributes
    ----------
    dtype
        Of the operands and results.
    quantities
        As computed.
    deviations
        By quantity, the largest relative deviation in each molecule.
    first_seconds, seconds
        Of each call, the first time (compilation included) and the second.
    """

    dtype: str
    quantities: Quantities
    deviations: dict[str, Floats]
    first_seconds: list[float]
    seconds: list[float]

    @property
    def bound(self) -> float:
        """Largest deviation that passes."""
        return BOUNDS[self.dtype]


def run(backend: Backend, batch: Batch, reference: Quantities, dtype: str) -> Run:
    """Compute in one dtype, twice, and compare what came the second time."""
    first, second = Calls(backend, dtype), Calls(backend, dtype)
    compute(first, batch)
    found = compute(second, batch)
    return Run(dtype, found, _deviations(batch, found, reference), first.seconds, second.seconds)


def passed(runs: list[Run]) -> bool:
    """Return whether every deviation of every run is within its bound; NaN is not."""
    return all((found <= run.bound).all() for run in runs for found in run.deviations.values())


def _deviations(batch: Batch, found: Quantities, reference: Quantities) -> dict[str, Floats]:
    scales = _scales(batch, reference)
    return {
        name: _relative(largest_rows(batch, getattr(found, name) - getattr(reference, name)), scale)
        for name, scale in scales.items()
    }


def _scales(batch: Batch, reference: Quantities) -> dict[str, Floats]:
    force_norms = np.linalg.norm(reference.forces, axis=1)
    return {
        "centre_of_mass": largest_rows(batch, batch.positions),
        "radius_of_gyration": reference.radius_of_gyration,
        "inertia_trace": reference.inertia_trace,
        "principal_moments": reference.inertia_trace,
        "energy": reference.energy,
        "forces": largest_rows(batch, reference.forces),
        "net_force": np.array([force_norms[atoms].sum() for atoms in batch.atoms_of_each()]),
        "hessian_product": largest_rows(batch, reference.hessian_product),
    }


def largest_rows(batch: Batch, rows: Floats) -> Floats:
    """Return the largest norm of a row in each molecule, of rows by atom or by molecule."""
    norms = np.abs(rows) if rows.ndim == 1 else np.linalg.norm(rows, axis=1)
    if len(norms) == batch.num_molecules:
        return norms
    return np.array([norms[atoms].max() for atoms in batch.atoms_of_each()])


def _relative(deviations: Floats, scales: Floats) -> Floats:
    """Divide; where the scale is 0 (the energy of a single atom) only 0 deviates by 0."""
    exact = np.where(deviations == 0, 0.0, np.inf)
    return np.divide(deviations, scales, out=exact, where=scales > 0)
