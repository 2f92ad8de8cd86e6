"""A segment's result depends on its own rows in their order, and on nothing else, bit for bit."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.library.axes import (
    answers,
    cotangent_of,
    each_case,
    each_dtype,
    each_route,
    labelled,
    select,
    select_results,
    tangents_of,
)
from tests.library.helpers import CASES, assert_same_bits, problem

HALF, SEGMENTS = 48, 5
ROWS = 2 * HALF


def wild(case, dtype, *, ordered=False, seed=0):
    """Return a problem whose sums depend on the order of rows, wide as they are accumulated.

    Magnitudes span more digits than the accumulator has, and each large row has its opposite.
    """
    rng = np.random.default_rng(seed)
    idx = np.tile(rng.integers(-1, SEGMENTS + 1, HALF), 2)
    p = problem(case, idx, SEGMENTS, seed=seed, dtype=dtype)
    scale = 10.0 ** (rng.integers(-10, 11, HALF) * (1 if dtype is np.float32 else 2))
    first, *rest = (
        twice(a) if labelled(p, name) else a
        for name, a in zip(case.shapes, p.operands, strict=True)
    )
    first = (first.T * np.concatenate([scale, np.where(scale > 1, -scale, scale)])).T
    p = replace(p, operands=(first.astype(dtype), *rest))
    order = np.argsort(idx, kind="stable") if ordered else slice(None)
    return replace(select(p, order), indices_are_sorted=ordered)


def twice(rows):
    return np.concatenate([rows[:HALF], rows[:HALF]])


def whole(p):
    """Return the inputs of a problem's answers in the shape of answers, to select from alike."""
    g, t = cotangent_of(p), tangents_of(p)
    g = twice(g) if p.case.broadcasts else g
    t = {name: twice(a) if labelled(p, name) else a for name, a in t.items()}
    return {"value": g, "vjp": {}, "jvp": g, "hvp": t}


def answers_of(p, inputs) -> dict[str, Any]:
    return jax.tree.map(np.asarray, answers(p, inputs["value"], inputs["hvp"]))


def segments_of(p, results, segments):
    """Return the answers of some segments and of all rows."""

    def pick(name, a):
        return a if labelled(p, name) else np.asarray(a)[segments]

    return {
        key: {n: pick(n, a) for n, a in r.items()} if isinstance(r, dict) else pick(key, r)
        for key, r in results.items()
    }


@each_dtype
@pytest.mark.parametrize(
    ("name", "result", "operand"),
    [
        ("sum-scalar", "value", None),
        ("dot", "value", None),
        ("mul", "vjp", "y"),
        ("matvec", "vjp", "m"),
    ],
)
def test_these_problems_would_show_another_order_of_additions(name, result, operand, dtype):
    p = wild(next(case for case in CASES if case.name == name), dtype)
    inputs, order = whole(p), np.random.default_rng(1).permutation(ROWS)
    here = answers_of(p, inputs)[result]
    there = answers_of(select(p, order), select_results(p, inputs, order))[result]
    if operand:
        here, there = here[operand], there[operand]
    assert here.tobytes() != there.tobytes()


@each_case
@each_dtype
@each_route
def test_other_segments_change_no_bit(case, dtype, ordered):
    p = wild(case, dtype, ordered=ordered)
    inputs = whole(p)
    together = answers_of(p, inputs)
    for s in (0, 3):
        rows = p.idx == s
        kept = segments_of(p, select_results(p, inputs, rows), slice(s, s + 1))
        one = select(p, rows)
        operands = [
            a if labelled(p, name) else a[s : s + 1]
            for name, a in zip(case.shapes, one.operands, strict=True)
        ]
        one = replace(one, operands=tuple(operands), idx=one.idx * 0, num_segments=1)
        expected = segments_of(p, select_results(p, together, rows), slice(s, s + 1))
        assert_same_bits(answers_of(one, kept), expected)


@each_case
@each_dtype
@each_route
@pytest.mark.parametrize("filler", [0.0, np.nan], ids=str)
def test_padding_rows_and_segments_change_no_bit(case, dtype, ordered, filler):
    p = wild(case, dtype, ordered=ordered)
    rows, segments = 31, 3

    def pad(name, a):
        extra = rows if labelled(p, name) else segments
        return np.concatenate([a, np.full((extra, *a.shape[1:]), filler, a.dtype)])

    def padded(results):
        return {
            key: {n: pad(n, a) for n, a in r.items()} if isinstance(r, dict) else pad(key, r)
            for key, r in results.items()
        }

    inputs = whole(p)
    operands = [pad(name, a) for name, a in zip(case.shapes, p.operands, strict=True)]
    # Ids that were one past the end must stay out of range among more segments.
    idx = np.where(p.idx == SEGMENTS, SEGMENTS + segments, p.idx)
    idx = np.concatenate([idx, np.full(rows, SEGMENTS + segments, idx.dtype)])
    wider = replace(p, operands=tuple(operands), idx=idx, num_segments=SEGMENTS + segments)
    results = answers_of(wider, padded(inputs))
    results = segments_of(p, select_results(p, results, slice(ROWS)), slice(SEGMENTS))
    assert_same_bits(results, answers_of(p, inputs))


@each_case
@each_dtype
def test_where_rows_lie_changes_no_bit(case, dtype):
    p = wild(case, dtype)
    inputs = whole(p)
    expected = answers_of(p, inputs)
    grouped = np.argsort(p.idx, kind="stable")
    backwards = np.argsort(-p.idx, kind="stable")
    interleaved = grouped[
        np.argsort(
            np.concatenate(
                [
                    np.arange(ROWS)[p.idx[grouped] == s] - np.argmax(p.idx[grouped] == s)
                    for s in np.unique(p.idx)
                ]
            ),
            kind="stable",
        )
    ]
    for order in (grouped, backwards, interleaved):
        results = answers_of(select(p, order), select_results(p, inputs, order))
        assert_same_bits(results, select_results(p, expected, order))


@each_case
@each_dtype
def test_promise_of_order_changes_no_bit(case, dtype):
    p = wild(case, dtype, ordered=True)
    inputs = whole(p)
    unpromised = replace(p, indices_are_sorted=False)
    assert_same_bits(answers_of(p, inputs), answers_of(unpromised, inputs))


@each_case
@each_dtype
@each_route
@pytest.mark.parametrize("mapped", ["operands", "idx", "everything"])
def test_a_batch_changes_no_bit(case, dtype, ordered, mapped):
    problems = [wild(case, dtype, ordered=ordered, seed=seed) for seed in range(3)]
    first = problems[0]
    if mapped == "operands":
        problems = [replace(p, idx=first.idx) for p in problems]
    if mapped == "idx":
        problems = [replace(p, operands=first.operands) for p in problems]

    def gradient(operands, idx):
        value, pull = jax.vjp(lambda *o: first.function(*o, idx=idx), *operands)
        return value, pull(jnp.cos(jnp.arange(value.size, dtype=dtype)).reshape(value.shape))

    operands = first.operands
    if mapped != "idx":
        operands = tuple(map(np.stack, zip(*(p.operands for p in problems), strict=True)))
    idx = first.idx if mapped == "operands" else np.stack([p.idx for p in problems])
    axes = (None if mapped == "idx" else 0, None if mapped == "operands" else 0)
    batched = jax.vmap(gradient, in_axes=axes)(operands, idx)
    for k, p in enumerate(problems):
        alone = gradient(p.operands, p.idx)
        assert_same_bits(jax.tree.map(lambda a, k=k: a[k], batched), alone)


@each_case
@each_dtype
@each_route
def test_jit_changes_no_bit(case, dtype, ordered):
    p = wild(case, dtype, ordered=ordered)
    g, t = cotangent_of(p), tangents_of(p)

    def inside(operands, idx, g, t):
        return answers(replace(p, operands=operands, idx=idx), g, t)

    compiled = jax.jit(inside)(p.operands, p.idx, g, t)
    assert_same_bits(compiled["value"], answers(p, g, t)["value"])
    assert_same_bits(compiled["vjp"], answers(p, g, t)["vjp"])


@each_case
@each_route
def test_runs_change_no_bit(case, ordered):
    p = wild(case, np.float32, ordered=ordered)
    inputs = whole(p)
    patterns = {
        b"".join(a.tobytes() for a in jax.tree.leaves(answers_of(p, inputs))) for _ in range(20)
    }
    assert len(patterns) == 1


@each_route
@pytest.mark.parametrize("op", ["segmented_sum", "segmented_mean"])
def test_large_runs_change_no_bit(op, ordered):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=30 * 256 * 256).astype(np.float32))
    idx = jnp.asarray(rng.integers(0, 4, len(x)).astype(np.int32))
    p = problem(CASES[0 if op == "segmented_sum" else 2], np.zeros(1, np.int32), 4)
    idx = jnp.sort(idx) if ordered else idx
    values = [
        np.asarray(p.case.op(x, idx, 4, indices_are_sorted=ordered)).tobytes() for _ in range(20)
    ]
    assert len(set(values)) == 1


@each_case
def test_threads_change_no_bit(case):
    problems = [wild(case, np.float32, seed=seed) for seed in range(4)]
    inputs = [whole(p) for p in problems]
    expected = [answers_of(p, i) for p, i in zip(problems, inputs, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = pool.map(answers_of, problems, inputs)
            for got, want in zip(results, expected, strict=True):
                assert_same_bits(got, want)


DIGEST = """
import hashlib, jax, numpy as np
jax.config.update("jax_enable_x64", True)
from tests.library.axes import answers
from tests.library.helpers import CASES
from tests.library.test_bits import wild
digest = hashlib.sha256()
for case in CASES:
    for ordered in (False, True):
        for a in jax.tree.leaves(answers(wild(case, np.float32, ordered=ordered))):
            digest.update(np.asarray(a).tobytes())
print(digest.hexdigest())
"""


def test_another_process_changes_no_bit(request):
    digest = hashlib.sha256()
    for case in CASES:
        for ordered in (False, True):
            for a in jax.tree.leaves(answers(wild(case, np.float32, ordered=ordered))):
                digest.update(np.asarray(a).tobytes())
    run = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        check=False,
        cwd=request.config.rootpath,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == digest.hexdigest()
