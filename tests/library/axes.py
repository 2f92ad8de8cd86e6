"""What the tests of meaning run over: cases, dtypes and routes, and what is compared there."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import segops
from tests.library.helpers import CASES, Problem, assert_same_bits

each_case = pytest.mark.parametrize("case", CASES, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
each_route = pytest.mark.parametrize("ordered", [False, True], ids=["any-order", "sorted"])


def cotangent_of(p: Problem, seed: int = 2) -> np.ndarray:
    """Return a random cotangent of the value."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=p.expected.shape).astype(p.operands[0].dtype)


def tangents_of(p: Problem, seed: int = 3) -> dict[str, np.ndarray]:
    """Return a random tangent of each operand by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=a.shape).astype(a.dtype)
        for name, a in zip(p.case.shapes, p.operands, strict=True)
    }


def answers(
    p: Problem,
    cotangent: np.ndarray | None = None,
    tangents: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Return the value, VJP, JVP and HVP of a problem: an operation whole."""
    g = cotangent_of(p) if cotangent is None else cotangent
    t = tangents_of(p) if tangents is None else tangents
    args = (*p.operands, p.idx, p.num_segments)
    options = {"indices_are_sorted": p.indices_are_sorted}
    value, vjp = segops.value_and_vjp(p.case.op, *args, cotangent=g, **options)
    return {
        "value": value,
        "vjp": vjp,
        "jvp": segops.jvp(p.case.op, *args, tangents=t, **options),
        "hvp": segops.hvp(p.case.op, *args, tangents=t, cotangent=g, **options),
    }


def labelled(p: Problem, name: str) -> bool:
    """Whether an operand, or the ``value`` or its ``jvp``, has a row for each id."""
    return p.case.broadcasts if name in ("value", "jvp") else p.case.shapes[name][0] == "N"


def select(p: Problem, rows: Any) -> Problem:
    """Return the problem of some of its rows, in the order given."""
    operands = tuple(
        a[rows] if labelled(p, name) else a
        for name, a in zip(p.case.shapes, p.operands, strict=True)
    )
    return replace(p, operands=operands, idx=p.idx[rows])


def select_results(p: Problem, results: dict[str, Any], rows: Any) -> dict[str, Any]:
    """Return the answers of some rows; what belongs to segments stays whole."""

    def pick(name: str, a: Any) -> np.ndarray:
        return np.asarray(a)[rows] if labelled(p, name) else np.asarray(a)

    return {
        key: {n: pick(n, a) for n, a in r.items()} if isinstance(r, dict) else pick(key, r)
        for key, r in results.items()
    }


def row_results(p: Problem, results: dict[str, Any]) -> list[np.ndarray]:
    """Return those answers that have a row for each id."""
    flat = {"value": results["value"], "jvp": results["jvp"]}
    by_name = [("value", flat["value"]), ("jvp", flat["jvp"])]
    by_name += [(n, a) for key in ("vjp", "hvp") for n, a in results[key].items()]
    return [np.asarray(a) for n, a in by_name if labelled(p, n)]


def assert_rows_dropped(p: Problem, rows: np.ndarray) -> None:
    """Assert that some rows get exact zeros and the rest gets the bits it has without them."""
    g, t = cotangent_of(p), tangents_of(p)
    results = answers(p, g, t)
    for a in row_results(p, results):
        assert not a[rows].any()
    kept = {"value": g, "vjp": {}, "jvp": g, "hvp": t}
    kept = select_results(p, kept, ~rows)
    without = answers(select(p, ~rows), kept["value"], kept["hvp"])
    assert_same_bits(select_results(p, results, ~rows), jax.tree.map(np.asarray, without))
