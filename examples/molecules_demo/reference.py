"""The same quantities, one molecule after another, in float64 by ase and NumPy."""

import ase
import numpy as np

from .batch import Batch, Floats, Ids
from .quantities import STIFFNESS, Quantities


def one_by_one(batch: Batch) -> Quantities:
    """Return the quantities of a loop over the molecules."""
    each = [_molecule(batch, index, atoms) for index, atoms in enumerate(batch.atoms_of_each())]
    stacked = {
        name: np.concatenate([np.atleast_1d(found[name]) for found in each])
        for name in ("radius_of_gyration", "inertia_trace", "energy", "forces", "hessian_product")
    }
    per_molecule = {
        name: np.stack([found[name] for found in each])
        for name in ("centre_of_mass", "principal_moments")
    }
    # Not a sum of what was computed: the forces of a molecule on itself add to exactly nothing.
    return Quantities(**stacked, **per_molecule, net_force=np.zeros((batch.num_molecules, 3)))


def _molecule(batch: Batch, index: int, atoms: slice) -> dict[str, Floats]:
    structure = batch.structures[index]
    bonds = batch.bond_molecule == index
    pairs = np.stack([batch.first[bonds], batch.second[bonds]], axis=1) - atoms.start
    rest_length = batch.rest_length[bonds]
    energy, gradient, hessian = bond_model(structure.positions, pairs, rest_length)
    displacement = batch.displacement[atoms]
    moments = structure.get_moments_of_inertia()
    return {
        "centre_of_mass": structure.get_center_of_mass(),
        "radius_of_gyration": _radius_of_gyration(structure),
        "inertia_trace": moments.sum(),
        "principal_moments": np.sort(moments),
        "energy": np.array(energy),
        "forces": -gradient,
        "hessian_product": np.einsum("iajb,jb->ia", hessian, displacement),
    }


def _radius_of_gyration(structure: ase.Atoms) -> Floats:
    arms = structure.positions - structure.get_center_of_mass()
    return np.sqrt(np.average((arms**2).sum(axis=1), weights=structure.get_masses()))


def bond_model(positions: Floats, pairs: Ids, rest_lengths: Floats) -> tuple[float, Floats, Floats]:
    """Return energy, gradient (atoms, 3) and the whole Hessian (atoms, 3, atoms, 3), bond by bond.

    A bond along the unit vector u with length l has the gradient k (l - l0) u at its second atom
    and the curvature k (u u^T + (1 - l0 / l) (1 - u u^T)).
    """
    energy = 0.0
    gradient = np.zeros((len(positions), 3))
    hessian = np.zeros((len(positions), 3, len(positions), 3))
    for (i, j), rest_length in zip(pairs, rest_lengths, strict=True):
        bond = positions[j] - positions[i]
        length = np.sqrt(bond @ bond)
        along = np.outer(bond, bond) / length**2
        curvature = STIFFNESS * (along + (1 - rest_length / length) * (np.eye(3) - along))
        energy += STIFFNESS / 2 * (length - rest_length) ** 2
        for atom, sign in ((i, -1), (j, 1)):
            gradient[atom] += sign * STIFFNESS * (length - rest_length) * bond / length
            hessian[atom, :, i] -= sign * curvature
            hessian[atom, :, j] += sign * curvature
    return energy, gradient, hessian
