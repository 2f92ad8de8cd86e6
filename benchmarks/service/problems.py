"""Problems to send: drawn from a seed, packed, and compared with the oracle's answer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.service import oracle
from benchmarks.service.oracle import Array, Arrays
from segops_client import wire

WANTS = ("value", "vjp", "jvp", "hvp")
_TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


@dataclass(frozen=True)
class Problem:
    """The arguments of one request; what is None or missing is not sent."""

    op: str
    operands: Arrays
    idx: Array
    num_segments: int
    want: tuple[str, ...] = ("value",)
    cotangent: Array | None = None
    tangents: Arrays | None = None
    options: Mapping[str, Any] | None = None

    @property
    def dtype(self) -> str:
        """Name of the dtype of all its float arrays."""
        return next(iter(self.operands.values())).dtype.name

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the body."""
        optional = {"cotangent": self.cotangent, "tangents": self.tangents}
        return {
            **self.operands,
            "idx": self.idx,
            "num_segments": self.num_segments,
            "want": list(self.want),
            **{name: value for name, value in optional.items() if value is not None},
            **(self.options or {}),
        }

    def pack(self) -> bytes:
        """Return the body in msgpack."""
        return wire.packb(self.fields)

    def to_json(self) -> bytes:
        """Return the body in JSON."""
        fields = {**self.fields, "dtype": self.dtype}
        return json.dumps(fields, default=np.ndarray.tolist).encode()

    def expected(self) -> dict[str, oracle.Result]:
        """Return what is wanted, in float64."""
        zeros = {name: np.zeros_like(array) for name, array in self.operands.items()}
        every = oracle.evaluate(
            self.op,
            self.operands,
            self.idx,
            self.num_segments,
            {**zeros, **(self.tangents or {})},
            np.ones(self._value_shape()) if self.cotangent is None else self.cotangent,
        )
        return {name: every[name] for name in self.want}

    def _value_shape(self) -> tuple[int, ...]:
        layouts = {name: ("N", *array.shape[1:]) for name, array in self.operands.items()}
        layout = oracle.value_layout(self.op, layouts)
        return oracle.shape(layout, len(self.idx), self.num_segments)


def draw(
    op: str,
    rows: int,
    segments: int,
    *,
    dtype: str = "float32",
    form: int = 0,
    want: tuple[str, ...] = ("value",),
    ids: str = "int32",
    is_sorted: bool = False,
    seed: int = 0,
) -> Problem:
    """Draw a problem with every derivative's arguments, as far as ``want`` uses them."""
    rng = np.random.default_rng(seed)
    layouts = oracle.OPERANDS[op][form]

    def floats(layout: oracle.Layout) -> Array:
        return rng.standard_normal(oracle.shape(layout, rows, segments)).astype(dtype)

    idx = rng.integers(0, max(segments, 1), rows).astype(ids)
    problem = Problem(
        op,
        {name: floats(layout) for name, layout in layouts.items()},
        np.sort(idx) if is_sorted else idx,
        segments,
        want,
    )
    if {"vjp", "hvp"} & {*want}:
        problem = replace(problem, cotangent=floats(oracle.value_layout(op, layouts)))
    if {"jvp", "hvp"} & {*want}:
        tangents = {name: floats(layout) for name, layout in layouts.items()}
        problem = replace(problem, tangents=tangents)
    return problem


def unpack(body: bytes) -> dict[str, Any]:
    """Decode an answer in msgpack."""
    answer: dict[str, Any] = wire.unpackb(body)
    return answer


def from_json(body: bytes, dtype: str) -> dict[str, Any]:
    """Decode an answer in JSON, with its lists as arrays of ``dtype``."""

    def arrays(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: arrays(value) for name, value in part.items()}
        return np.array(part, dtype)

    answer: dict[str, Any] = arrays(json.loads(body))
    return answer


def difference(answer: Any, expected: Mapping[str, Any], dtype: str, rows: int) -> str | None:
    """Return what is wrong with an answer, None if it is right.

    It may be off by a few roundings of its dtype and, as a float64 sum of so many rows may be in
    any order, by one float64 rounding a row.
    """
    got, wanted = dict(_leaves(answer)), dict(_leaves(expected))
    if got.keys() != wanted.keys():
        return f"has {', '.join(got) or 'nothing'} and not {', '.join(wanted)}"
    tolerance = _TOLERANCE[dtype] + rows * np.finfo(np.float64).eps
    for path, right in wanted.items():
        array = got[path]
        if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
            return f"{path} is no {dtype} array"
        if array.shape != right.shape:
            return f"{path} has shape {array.shape} and not {right.shape}"
        scale = max(1.0, np.abs(right).max(initial=0))
        error = np.abs(array - right).max(initial=0)
        if not error <= tolerance * scale:  # also where it is NaN
            return f"{path} is off by {error:.1e}, where {tolerance * scale:.1e} is allowed"
    return None


def _leaves(part: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(part, Mapping):
        for name, value in part.items():
            yield from _leaves(value, f"{path}.{name}".lstrip("."))
    else:
        yield path, part
