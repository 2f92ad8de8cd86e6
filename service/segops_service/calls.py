"""A validated request: what the engine takes and what it gives back."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segops_service.operations import OPERATIONS, Form

Array = NDArray[Any]
_DTYPES = {np.dtype(name): name for name in ("float32", "float64")}  # quicker than dtype.name
Answer = dict[str, Array | dict[str, Array]]


@dataclass(eq=False, slots=True)
class Call:
    """One computation: every array is on the host, checked, and of the shape that ``op`` wants.

    The arrays may be read-only views into the body of the request; they keep it alive.

    Attributes
    ----------
    op, operands, idx, num_segments, want, cotangent, tangents
        As the request names them.
    ids_in_range
        Whether every id is known to lie in ``[0, num_segments)``.
    ids_ascend
        Whether the ids are known to ascend.
    answer_bytes
        Bytes of all arrays of the answer.
    """

    op: str
    operands: dict[str, Array]
    idx: Array
    num_segments: int
    want: tuple[str, ...]
    cotangent: Array | None
    tangents: dict[str, Array]
    ids_in_range: bool = False
    ids_ascend: bool = False
    answer_bytes: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.idx)

    @property
    def kind(self) -> "Kind":
        """What this call must share with others to be computed with them."""
        first = next(iter(self.operands.values()))
        return Kind(
            self.op,
            first.ndim,
            _DTYPES[first.dtype],
            self.want,
            self.cotangent is not None,
            tuple(self.tangents),
        )


class Kind(NamedTuple):
    """Everything about a computation but its sizes and its numbers."""

    op: str
    ndim: int
    dtype: str
    want: tuple[str, ...]
    has_cotangent: bool
    tangents: tuple[str, ...]

    @property
    def form(self) -> Form:
        """Layouts of the operands and of the value."""
        form = OPERATIONS[self.op].form(self.ndim)
        assert form is not None, "only validated calls have a kind"
        return form
