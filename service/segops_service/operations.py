"""The six operations as data: operand names and the shapes that go together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

Layout = tuple[str | int, ...]
Shape = tuple[int, ...]

WANTS = ("value", "vjp", "jvp", "hvp")


def fill(layout: Layout, rows: int, segments: int) -> Shape:
    """Shape of a layout: ``N`` stands for the rows, ``S`` for the segments."""
    sizes = {"N": rows, "S": segments}
    return tuple(size if isinstance(size, int) else sizes[size] for size in layout)


def count(layout: Layout, rows: int, segments: int) -> int:
    """Numbers in an array of a layout."""
    return (rows if layout[0] == "N" else segments) * _width(layout)


@lru_cache
def _width(layout: Layout) -> int:
    return prod(size for size in layout[1:] if isinstance(size, int))


def spell(layout: Layout) -> str:
    """Layout as a reader knows it from Python, such as ``(N, 3)`` or ``(S,)``."""
    return f"({layout[0]},)" if len(layout) == 1 else f"({', '.join(map(str, layout))})"


@dataclass(frozen=True)
class Form:
    """Layouts of the operands, in the order of the signature, and of the value."""

    operands: Mapping[str, Layout]
    value: Layout


@dataclass(frozen=True)
class Operation:
    """An operation: a sentence about it and the forms that it takes."""

    summary: str
    forms: tuple[Form, ...]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the differentiable operands, in the order of the signature."""
        return tuple(self.forms[0].operands)

    def form(self, ndim: int) -> Form | None:
        """Form whose first operand has ``ndim`` axes."""
        return self._by_ndim.get(ndim)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Names of the fields that no request can do without."""
        return (*self.operands, "idx", "num_segments")

    @cached_property
    def _by_ndim(self) -> Mapping[int, Form]:
        return {len(form.operands[self.operands[0]]): form for form in self.forms}


_SCALARS: Layout = ("N",)
_VECTORS: Layout = ("N", 3)
_REDUCTIONS = (
    Form({"x": _SCALARS}, ("S",)),
    Form({"x": _VECTORS}, ("S", 3)),
)

OPERATIONS: Mapping[str, Operation] = {
    "segmented_sum": Operation("Sum of the rows of each segment.", _REDUCTIONS),
    "segmented_mean": Operation("Mean of the rows of each segment; 0 where empty.", _REDUCTIONS),
    "segmented_dot": Operation(
        "Sum over each segment of the dot products of paired rows.",
        (Form({"x": _VECTORS, "y": _VECTORS}, ("S",)),),
    ),
    "segmented_rms_norm": Operation(
        "Root of the mean squared Euclidean norm of the rows of each segment; 0 where empty.",
        (Form({"x": _VECTORS}, ("S",)),),
    ),
    "segmented_mul": Operation(
        "Each row times the scalar of its segment.",
        (Form({"x": _VECTORS, "y": ("S",)}, _VECTORS),),
    ),
    "segmented_matvec": Operation(
        "The transposed matrix of its segment times each row.",
        (Form({"v": _VECTORS, "m": ("S", 3, 3)}, _VECTORS),),
    ),
}
