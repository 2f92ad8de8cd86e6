"""A validated request: what the engine takes and what it gives back."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Answer = dict[str, Array | dict[str, Array]]


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One computation: every array is on the host, checked, and of the shape that ``op`` wants.

    The arrays may be read-only views into the body of the request; they keep it alive.
    """

    op: str
    operands: dict[str, Array]
    idx: Array
    num_segments: int
    indices_are_sorted: bool
    want: tuple[str, ...]
    cotangent: Array | None
    tangents: dict[str, Array]
