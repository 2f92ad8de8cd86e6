"""The six operations and their derivatives as formulas in NumPy float64."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Result = Array | dict[str, Array]
Layout = tuple[str | int, ...]

OPERANDS: Mapping[str, tuple[Mapping[str, Layout], ...]] = {
    "segmented_sum": ({"x": ("N", 3)}, {"x": ("N",)}),
    "segmented_mean": ({"x": ("N", 3)}, {"x": ("N",)}),
    "segmented_dot": ({"x": ("N", 3), "y": ("N", 3)},),
    "segmented_rms_norm": ({"x": ("N", 3)},),
    "segmented_mul": ({"x": ("N", 3), "y": ("S",)},),
    "segmented_matvec": ({"v": ("N", 3), "m": ("S", 3, 3)},),
}
"""Layouts of the operands of each op, one map for each form that it takes."""


def shape(layout: Layout, rows: int, segments: int) -> tuple[int, ...]:
    """Return a layout's shape: ``N`` stands for the rows, ``S`` for the segments."""
    sizes = {"N": rows, "S": segments}
    return tuple(size if isinstance(size, int) else sizes[size] for size in layout)


def value_layout(op: str, operands: Mapping[str, Layout]) -> Layout:
    """Return the layout of an op's value."""
    if op in ("segmented_mul", "segmented_matvec"):
        return ("N", 3)
    if op in ("segmented_dot", "segmented_rms_norm"):
        return ("S",)
    return ("S", *operands["x"][1:])


def evaluate(
    op: str, operands: Arrays, idx: Array, num_segments: int, tangents: Arrays, cotangent: Array
) -> dict[str, Result]:
    """Return value, vjp, jvp and hvp; rows whose id is out of range take no part.

    Parameters
    ----------
    op
        Name of the operation.
    operands, tangents
        By name; the tangents are complete.
    idx, num_segments
        The segments.
    cotangent
        Of the shape of the value.
    """
    u = {name: array.astype(np.float64) for name, array in operands.items()}
    t = {name: array.astype(np.float64) for name, array in tangents.items()}
    return _FORMULAS[op](_Segments(idx, num_segments), u, t, cotangent.astype(np.float64))


class _Segments:
    """Reduction and broadcast over ids."""

    def __init__(self, idx: Array, num_segments: int) -> None:
        self._valid = (idx >= 0) & (idx < num_segments)
        self._ids = idx[self._valid].astype(np.int64)
        self._num_segments = num_segments
        self.counts = np.bincount(self._ids, minlength=num_segments).astype(np.float64)

    def sum(self, rows: Array) -> Array:
        columns = rows[self._valid].reshape(len(self._ids), prod(rows.shape[1:]))
        sums = [np.bincount(self._ids, column, self._num_segments) for column in columns.T]
        return np.stack(sums, -1).reshape(self._num_segments, *rows.shape[1:])

    def spread(self, values: Array) -> Array:
        rows = np.zeros((len(self._valid), *values.shape[1:]))
        rows[self._valid] = values[self._ids]
        return rows


def _column(scalars: Array, like: Array) -> Array:
    return scalars.reshape(len(scalars), *[1] * (like.ndim - 1))


def _dot(a: Array, b: Array) -> Array:
    product: Array = np.einsum("nk,nk->n", a, b)
    return product


def _sum(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    return {
        "value": s.sum(u["x"]),
        "vjp": {"x": s.spread(g)},
        "jvp": s.sum(t["x"]),
        "hvp": {"x": np.zeros_like(u["x"])},
    }


def _mean(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    scale = _column(1 / np.maximum(s.counts, 1), g)
    return {
        "value": scale * s.sum(u["x"]),
        "vjp": {"x": s.spread(scale * g)},
        "jvp": scale * s.sum(t["x"]),
        "hvp": {"x": np.zeros_like(u["x"])},
    }


def _pair(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    x, y, rows = u["x"], u["y"], s.spread(g)[:, None]
    return {
        "value": s.sum(_dot(x, y)),
        "vjp": {"x": rows * y, "y": rows * x},
        "jvp": s.sum(_dot(t["x"], y) + _dot(x, t["y"])),
        "hvp": {"x": rows * t["y"], "y": rows * t["x"]},
    }


def _rms_norm(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    x, count = u["x"], np.maximum(s.counts, 1)
    rms = np.sqrt(s.sum(_dot(x, x)) / count)
    inverse = np.divide(1, rms, out=np.zeros_like(rms), where=rms > 0)
    along = s.sum(_dot(x, t["x"]))
    first = s.spread(g * inverse / count)[:, None]
    second = s.spread(g * along * inverse**3 / count**2)[:, None]
    return {
        "value": rms,
        "vjp": {"x": first * x},
        "jvp": along * inverse / count,
        "hvp": {"x": first * t["x"] - second * x},
    }


def _mul(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    x, y, t_y = u["x"], s.spread(u["y"])[:, None], s.spread(t["y"])[:, None]
    return {
        "value": x * y,
        "vjp": {"x": g * y, "y": s.sum(_dot(g, x))},
        "jvp": t["x"] * y + x * t_y,
        "hvp": {"x": g * t_y, "y": s.sum(_dot(g, t["x"]))},
    }


def _matvec(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Result]:
    v, m, t_m = u["v"], s.spread(u["m"]), s.spread(t["m"])

    def times(vectors: Array, matrices: Array) -> Array:
        product: Array = np.einsum("nk,nkl->nl", vectors, matrices)
        return product

    def outer(a: Array, b: Array) -> Array:
        return s.sum(a[:, :, None] * b[:, None, :])

    return {
        "value": times(v, m),
        "vjp": {"v": times(g, m.swapaxes(1, 2)), "m": outer(v, g)},
        "jvp": times(t["v"], m) + times(v, t_m),
        "hvp": {"v": times(g, t_m.swapaxes(1, 2)), "m": outer(t["v"], g)},
    }


_FORMULAS: Mapping[str, Callable[[_Segments, Arrays, Arrays, Array], dict[str, Result]]] = {
    "segmented_sum": _sum,
    "segmented_mean": _mean,
    "segmented_dot": _pair,
    "segmented_rms_norm": _rms_norm,
    "segmented_mul": _mul,
    "segmented_matvec": _matvec,
}
