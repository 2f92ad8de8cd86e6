"""Molecules of any size as one batch of rows, each labelled with the molecule it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass

import ase
import numpy as np
from ase.collections import g2
from ase.data import covalent_radii
from ase.neighborlist import natural_cutoffs, neighbor_list
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

STRETCH_OF_A_BOND = 1.25
"""Atoms nearer than this times the sum of their covalent radii are bonded.

No smaller round factor bonds F2, and this one leaves every molecule in one piece.
"""
DISPLACEMENT_SEED = 2


@dataclass(frozen=True)
class Batch:
    """All atoms in one array, all bonds in another; both sorted by molecule.

    Attributes
    ----------
    names, structures
        Of the molecules.
    positions
        Å, shape (atoms, 3).
    masses
        amu, shape (atoms,).
    molecule
        Of each atom.
    first, second
        Atoms that a bond joins.
    rest_length
        Of each bond, Å: the sum of the covalent radii.
    bond_molecule
        Of each bond.
    displacement
        The direction along which the Hessian is taken, shape (atoms, 3): arbitrary but fixed.
    """

    names: tuple[str, ...]
    structures: tuple[ase.Atoms, ...]
    positions: Floats
    masses: Floats
    molecule: Ids
    first: Ids
    second: Ids
    rest_length: Floats
    bond_molecule: Ids
    displacement: Floats

    @property
    def num_molecules(self) -> int:
        return len(self.names)

    @property
    def num_atoms(self) -> int:
        return len(self.masses)

    @property
    def num_bonds(self) -> int:
        return len(self.rest_length)

    @property
    def sizes(self) -> Ids:
        """Number of atoms of each molecule."""
        return np.array([len(atoms) for atoms in self.structures])

    def atoms_of_each(self) -> Iterator[slice]:
        """Yield where the atoms of each molecule lie."""
        ends = np.cumsum(self.sizes)
        yield from (slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))


def load_g2() -> Batch:
    """Read the G2 set that ase ships."""
    structures = tuple(g2[name] for name in g2.names)
    sizes = [len(atoms) for atoms in structures]
    molecule = np.repeat(np.arange(len(structures)), sizes)
    numbers = np.concatenate([atoms.numbers for atoms in structures])
    first, second = _bonds(structures)
    return Batch(
        names=tuple(g2.names),
        structures=structures,
        positions=np.concatenate([atoms.positions for atoms in structures]),
        masses=np.concatenate([atoms.get_masses() for atoms in structures]),
        molecule=molecule,
        first=first,
        second=second,
        rest_length=covalent_radii[numbers[first]] + covalent_radii[numbers[second]],
        bond_molecule=molecule[first],
        displacement=np.random.default_rng(DISPLACEMENT_SEED).normal(size=(len(molecule), 3)),
    )


def _bonds(structures: tuple[ase.Atoms, ...]) -> tuple[Ids, Ids]:
    """Return the two atoms of each bond, counted through the batch."""
    pairs, offset = [], 0
    for atoms in structures:
        cutoffs = natural_cutoffs(atoms, mult=STRETCH_OF_A_BOND)
        i, j = neighbor_list("ij", atoms, cutoffs)
        pairs.append(np.stack([i, j])[:, i < j] + offset)  # the list has each bond both ways
        offset += len(atoms)
    first, second = np.concatenate(pairs, axis=1)
    return first, second
