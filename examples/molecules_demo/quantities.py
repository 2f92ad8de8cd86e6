"""What is computed of all molecules at once, by segment operations.

The host works in float64; `calls.Calls` rounds an operand once, as it is sent.
"""

from dataclasses import dataclass

import numpy as np

from .batch import Batch, Floats, Ids
from .calls import Calls

STIFFNESS = 30.0
"""Of every bond, eV/Å²: about that of a single bond between carbon atoms."""


@dataclass(frozen=True)
class Quantities:
    """Of each molecule, or of each atom where it says so.

    Attributes
    ----------
    centre_of_mass
        Å, shape (molecules, 3).
    radius_of_gyration
        Å, weighted by mass: the root of sum m |x - centre|² / sum m.
    inertia_trace, principal_moments
        About the centre of mass, amu Å²; the moments ascend, shape (molecules, 3).
    energy
        Of the bonds, eV.
    forces
        On each atom, eV/Å, shape (atoms, 3).
    net_force
        eV/Å, shape (molecules, 3).
    hessian_product
        Hessian of the energy times the batch's displacement, eV/Å, shape (atoms, 3).
    """

    centre_of_mass: Floats
    radius_of_gyration: Floats
    inertia_trace: Floats
    principal_moments: Floats
    energy: Floats
    forces: Floats
    net_force: Floats
    hessian_product: Floats


def compute(ops: Calls, batch: Batch) -> Quantities:
    """Compute everything; each line with ``ops`` is one call for all molecules."""
    centre = _centre_of_mass(ops, batch)
    arms = batch.positions - centre[batch.molecule]
    forces = -_gradient(ops, batch)
    return Quantities(
        centre_of_mass=centre,
        radius_of_gyration=_radius_of_gyration(ops, batch, arms),
        inertia_trace=_inertia_trace(ops, batch, arms),
        principal_moments=_principal_moments(ops, batch, arms),
        energy=_energy(ops, batch),
        forces=forces,
        net_force=ops.segmented_sum(
            forces, batch.molecule, batch.num_molecules, indices_are_sorted=True
        ),
        hessian_product=_hessian_product(ops, batch),
    )


def _centre_of_mass(ops: Calls, batch: Batch) -> Floats:
    """Return sum m x / sum m; the number of atoms cancels in the ratio of the means."""
    segments = batch.molecule, batch.num_molecules
    weighted = batch.masses[:, None] * batch.positions
    moment = ops.segmented_mean(weighted, *segments, indices_are_sorted=True)
    mass = ops.segmented_mean(batch.masses, *segments, indices_are_sorted=True)
    return moment / mass[:, None]


def _radius_of_gyration(ops: Calls, batch: Batch, arms: Floats) -> Floats:
    """Return the rms norm of sqrt(m / mean m) (x - centre), which weights by mass."""
    segments = batch.molecule, batch.num_molecules
    mean_mass = ops.segmented_mean(batch.masses, *segments, indices_are_sorted=True)
    rows = np.sqrt(batch.masses)[:, None] * arms
    scaled = ops.segmented_mul(rows, 1 / np.sqrt(mean_mass), *segments, indices_are_sorted=True)
    return ops.segmented_rms_norm(scaled, *segments, indices_are_sorted=True)


def _inertia_trace(ops: Calls, batch: Batch, arms: Floats) -> Floats:
    """Return the trace of sum m (|r|² 1 - r r^T), r = x - centre: it is 2 sum m r.r."""
    momenta = 2 * batch.masses[:, None] * arms
    return ops.segmented_dot(
        momenta, arms, batch.molecule, batch.num_molecules, indices_are_sorted=True
    )


def _principal_moments(ops: Calls, batch: Batch, arms: Floats) -> Floats:
    """Return the moments about each molecule's own axes, after turning it into them.

    The axes diagonalise sum m r r^T. With its eigenvectors as the columns of V, the rows V^T r are
    in the principal frame, and the moment about axis a is sum m (|r|² - r_a²).
    """
    segments = batch.molecule, batch.num_molecules
    _, axes = np.linalg.eigh(_second_moments(ops, batch, arms))
    turned = ops.segmented_matvec(arms, axes, *segments, indices_are_sorted=True)
    squares = batch.masses[:, None] * turned**2
    spread = ops.segmented_sum(squares, *segments, indices_are_sorted=True)
    return np.sort(spread.sum(axis=1, keepdims=True) - spread, axis=1)


def _second_moments(ops: Calls, batch: Batch, arms: Floats) -> Floats:
    """Return sum m r r^T: (xx, yy, zz) is one vector of sums, (xy, yz, zx) another."""
    segments = batch.molecule, batch.num_molecules
    weighted = batch.masses[:, None] * arms
    same = ops.segmented_sum(weighted * arms, *segments, indices_are_sorted=True)
    turned = np.roll(arms, -1, axis=1)
    mixed = ops.segmented_sum(weighted * turned, *segments, indices_are_sorted=True)
    tensors = np.zeros((batch.num_molecules, 3, 3))
    axis, following = np.array([0, 1, 2]), np.array([1, 2, 0])
    tensors[:, axis, axis] = same
    tensors[:, axis, following] = tensors[:, following, axis] = mixed
    return tensors


# The harmonic bond model. With r_b = x[second] - x[first] for each bond b,
#
#     E = sum_b phi(|r_b|),    phi(l) = k/2 (l - l0)².
#
# The length |r_b| is the rms norm of a segment that holds the one row r_b, so its derivatives of
# first and second order are those of `segmented_rms_norm`, and the chain rule needs only
# phi'(l) = k (l - l0) and phi'' = k:
#
#     dE/dr_b     = phi'(|r_b|) d|r_b|/dr_b                       a VJP with cotangent phi'
#     d²E/dr_b² t = phi'' (d|r_b|/dr_b . t) d|r_b|/dr_b           a JVP, then a VJP with phi'' JVP
#                   + phi'(|r_b|) d²|r_b|/dr_b² t                 an HVP with cotangent phi'
#
# From bonds to atoms: x enters r_b with +1 at `second` and -1 at `first`, so a derivative in r_b is
# added to the one and taken from the other: a sum with the atoms as the segments.


def _energy(ops: Calls, batch: Batch) -> Floats:
    return ops.segmented_sum(
        STIFFNESS / 2 * _stretch(batch) ** 2,
        batch.bond_molecule,
        batch.num_molecules,
        indices_are_sorted=True,
    )


def _gradient(ops: Calls, batch: Batch) -> Floats:
    """Return dE/dx."""
    tension = STIFFNESS * _stretch(batch)
    _, pulled = ops.value_and_vjp(*_lengths(batch), cotangent=tension)
    return _on_atoms(ops, batch, pulled["x"])


def _hessian_product(ops: Calls, batch: Batch) -> Floats:
    """Return d²E/dx² t for the displacement t of the atoms."""
    lengths = _lengths(batch)
    tangents = {"x": _across_bonds(batch, batch.displacement)}
    lengthening = ops.jvp(*lengths, tangents=tangents)
    _, stiff = ops.value_and_vjp(*lengths, cotangent=STIFFNESS * lengthening)
    tension = STIFFNESS * _stretch(batch)
    curved = ops.hvp(*lengths, tangents=tangents, cotangent=tension)
    return _on_atoms(ops, batch, stiff["x"] + curved["x"])


def _lengths(batch: Batch) -> tuple[str, Floats, Ids, int]:
    """Return the call that gives the length of each bond."""
    rows = _across_bonds(batch, batch.positions)
    return "segmented_rms_norm", rows, np.arange(batch.num_bonds), batch.num_bonds


def _stretch(batch: Batch) -> Floats:
    """Return l - l0, which float32 must not form.

    A bond is some 50 times as long as it is stretched, in CF4 1700 times, and by as much grows
    the relative error that rounding gives the length: the energy of CF4 would be off by 3e-4.
    """
    lengths = np.linalg.norm(_across_bonds(batch, batch.positions), axis=1)
    return lengths - batch.rest_length


def _across_bonds(batch: Batch, rows: Floats) -> Floats:
    """Return the difference over each bond of what the atoms have."""
    return rows[batch.second] - rows[batch.first]


def _on_atoms(ops: Calls, batch: Batch, rows: Floats) -> Floats:
    """Return what the bonds add to their atoms: the transpose of `_across_bonds`."""
    both_ends = np.concatenate([rows, -rows])
    atoms = np.concatenate([batch.second, batch.first])
    return ops.segmented_sum(both_ends, atoms, batch.num_atoms)
