"""The inputs of the measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDERS = ("sorted", "shuffled")
ROWS_PER_SEGMENT = 100

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Problem:
    """Operands, tangents for them, and ids."""

    op: str
    order: str
    num_segments: int
    operands: tuple[Floats, ...]
    tangents: tuple[Floats, ...]
    idx: NDArray[np.int32]

    @property
    def is_sorted(self) -> bool:
        """Whether the ids may be promised to be sorted."""
        return self.order == "sorted"


def make(op: str, n: int, order: str, seed: int = 0) -> Problem:
    """Return random float32 vec3 rows with ids drawn uniformly from n / 100 segments."""
    rng = np.random.default_rng(seed)
    num_segments = max(1, n // ROWS_PER_SEGMENT)
    idx = np.sort(rng.integers(0, num_segments, n, dtype=np.int32))
    if order == "shuffled":
        rng.shuffle(idx)
    shapes = operand_shapes(op, n, num_segments)
    operands, tangents = (
        tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes) for _ in range(2)
    )
    return Problem(op, order, num_segments, operands, tangents, idx)


def operand_shapes(op: str, n: int, num_segments: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of an op's differentiable operands for vec3 rows."""
    second: dict[str, tuple[int, ...]] = {
        "dot": (n, 3),
        "mul": (num_segments,),
        "matvec": (num_segments, 3, 3),
    }
    return ((n, 3), second[op]) if op in second else ((n, 3),)
