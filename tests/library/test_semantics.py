"""Empty segments, dropped rows, non-finite rows and the ends of the number range."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.axes import (
    answers,
    assert_rows_dropped,
    cotangent_of,
    each_case,
    each_dtype,
    each_route,
    labelled,
    row_results,
    select,
    select_results,
    tangents_of,
)
from tests.library.helpers import CASES, SEGMENTS, SHUFFLED, assert_same_bits, problem

NOT_FINITE = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)


def third(p):
    """Return the third derivative of a problem's value along one direction of all operands."""
    t = tangents_of(p)
    direction = tuple(t[name] for name in p.case.shapes)

    def along(f):
        return lambda *operands: jax.jvp(f, operands, direction)[1]

    return along(along(along(p.function)))(*p.operands)


# --- empty segments ----------------------------------------------------------------------------


@each_case
@each_dtype
@each_route
def test_empty_segments_give_zero_and_finite_derivatives(case, dtype, ordered):
    p = problem(case, [4, 1, 4, 1, 1], 6, ordered=ordered, dtype=dtype)
    empty = [0, 2, 3, 5]
    results = answers(p)
    for a in jax.tree.leaves(results):
        assert np.isfinite(a).all()
    if not case.broadcasts:
        assert not np.asarray(results["value"])[empty].any()
        assert not np.asarray(results["jvp"])[empty].any()
    for key in ("vjp", "hvp"):
        for name, a in results[key].items():
            if not labelled(p, name):
                assert not np.asarray(a)[empty].any()


@each_case
@each_route
def test_empty_segments_have_a_finite_third_derivative(case, ordered):
    p = problem(case, [4, 1, 4, 1, 1], 6, ordered=ordered)
    result = np.asarray(third(p))
    assert np.isfinite(result).all()
    if not case.broadcasts:
        assert not result[[0, 2, 3, 5]].any()


@each_case
@each_dtype
@each_route
@pytest.mark.parametrize(("rows", "segments"), [(0, 0), (0, 4), (3, 0)])
def test_nothing_in_gives_zeros_out(case, dtype, ordered, rows, segments):
    p = problem(case, np.zeros(rows, np.int32), segments, ordered=ordered, dtype=dtype)
    results = answers(p)
    like = {name: a.shape for name, a in zip(case.shapes, p.operands, strict=True)}
    shapes = {"value": p.expected.shape, "jvp": p.expected.shape, "vjp": like, "hvp": like}
    assert jax.tree.map(np.shape, results) == shapes
    assert np.shape(third(p)) == p.expected.shape
    for a in jax.tree.leaves((results, third(p))):
        assert a.dtype == dtype
        assert not np.asarray(a).any()


# --- dropped rows ------------------------------------------------------------------------------


@each_case
@each_dtype
@each_route
@NOT_FINITE
def test_dropped_row_spoils_nothing_whatever_it_holds(case, dtype, ordered, bad):
    p = problem(case, SHUFFLED, ordered=ordered, dtype=dtype)
    for name, a in zip(case.shapes, p.operands, strict=True):
        if labelled(p, name):
            a[~p.valid] = bad
    assert_rows_dropped(p, ~p.valid)


@each_case
@each_route
def test_dropped_row_spoils_nothing_whatever_its_tangent_holds(case, ordered):
    p = problem(case, SHUFFLED, ordered=ordered)
    g, t = cotangent_of(p), tangents_of(p)
    clean = answers(p, g, t)
    for name, a in t.items():
        if labelled(p, name):
            a[~p.valid] = np.nan
    if case.broadcasts:
        g[~p.valid] = np.nan
    assert_same_bits(answers(p, g, t), clean)


@each_case
@each_route
def test_dropped_row_has_no_third_derivative(case, ordered):
    p = problem(case, SHUFFLED, ordered=ordered)
    clean = third(p)
    for name, a in zip(case.shapes, p.operands, strict=True):
        if labelled(p, name):
            a[~p.valid] = np.nan
    result = third(p)
    assert_same_bits(result, clean)


@each_case
@each_route
def test_all_rows_out_of_range_leave_zeros(case, ordered):
    p = problem(case, [SEGMENTS, -1, -(2**31), 2**31 - 1], ordered=ordered)
    for a in jax.tree.leaves(answers(p)):
        assert not np.asarray(a).any()


# --- NaN and infinity --------------------------------------------------------------------------


def without_segment(p, results, s):
    """Return the answers of all rows but those of a segment, and of all segments but it."""
    kept = select_results(p, results, p.idx != s)

    def drop(name, a):
        return a if labelled(p, name) else np.delete(a, s, axis=0)

    return {
        key: {n: drop(n, a) for n, a in r.items()} if isinstance(r, dict) else drop(key, r)
        for key, r in kept.items()
    }


@each_case
@each_dtype
@each_route
@NOT_FINITE
def test_bad_number_stays_in_its_segment(case, dtype, ordered, bad):
    p = problem(case, SHUFFLED, ordered=ordered, dtype=dtype)
    g, t = cotangent_of(p), tangents_of(p)
    clean = answers(p, g, t)
    rows = np.flatnonzero(p.idx == 3)
    for k, name in enumerate(case.shapes):
        operands = [a.copy() for a in p.operands]
        operands[k][rows[1] if labelled(p, name) else 3] = bad
        spoiled = answers(replace(p, operands=tuple(operands)), g, t)
        assert_same_bits(without_segment(p, spoiled, 3), without_segment(p, clean, 3))
        assert not np.isfinite(spoiled["value"]).all()


@each_case
@each_route
def test_bad_cotangent_or_tangent_stays_in_its_segment(case, ordered):
    p = problem(case, SHUFFLED, ordered=ordered)
    g, t = cotangent_of(p), tangents_of(p)
    clean = answers(p, g, t)
    first = np.flatnonzero(p.idx == 3)[0]
    g[first if case.broadcasts else 3] = np.nan
    for name, a in t.items():
        a[first if labelled(p, name) else 3] = np.nan
    spoiled = answers(p, g, t)
    assert_same_bits(without_segment(p, spoiled, 3), without_segment(p, clean, 3))
    assert any(np.isnan(a).any() for a in jax.tree.leaves(spoiled["vjp"]))
    assert np.isnan(spoiled["jvp"]).any()


@each_route
def test_infinite_sums_follow_arithmetic(ordered):
    x = np.array([math.inf, 1, math.inf, -math.inf, -math.inf, 5, math.nan, 2])
    idx = [0, 0, 1, 1, 2, 2, 3, 4]
    expected = [math.inf, math.nan, -math.inf, math.nan, 2]
    for dtype in (np.float32, np.float64):
        for op in (segops.segmented_sum, segops.segmented_mean):
            value = op(x.astype(dtype), idx, 5, indices_are_sorted=ordered)
            np.testing.assert_array_equal(value, expected)


# --- a norm of zero ------------------------------------------------------------------------------


def zero_norm(dtype, ordered):
    """Return a problem whose segment 0 has a zero norm, with zeros of both signs."""
    case = next(case for case in CASES if case.name == "rms_norm")
    p = problem(case, [0, 1, 0, 1, -1], 3, ordered=ordered, dtype=dtype)
    p.operands[0][p.idx == 0] = [[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]]
    return p


@each_route
@each_dtype
def test_zero_norm_has_value_zero_and_zero_derivatives(ordered, dtype):
    p = zero_norm(dtype, ordered)
    results = answers(p)
    assert results["value"][0] == 0
    assert results["jvp"][0] == 0
    for a in row_results(p, results):
        assert not a[p.idx == 0].any()
    assert third(p)[0] == 0
    assert third(p)[1] != 0


@each_route
@pytest.mark.parametrize("modes", list(itertools.product("fr", repeat=3)), ids="".join)
def test_zero_norm_has_a_zero_third_derivative_in_every_mode(ordered, modes):
    p = zero_norm(np.float64, ordered)
    function = p.function
    for mode in modes:
        function = {"f": jax.jacfwd, "r": jax.jacrev}[mode](function)
    whole = np.asarray(jax.jit(function)(*p.operands))
    assert np.isfinite(whole).all()
    assert not whole[0].any()
    assert whole[1].any()


# --- the ends of the range ---------------------------------------------------------------------

FLOAT32, FLOAT64 = np.finfo(np.float32), np.finfo(np.float64)


def along_x(values, dtype):
    """Return rows of vectors along the first axis."""
    rows = np.zeros((len(values), 3), dtype)
    rows[:, 0] = values
    return rows


@each_route
@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (np.float64, [1e308, 1e308, -1e308], 1e308),
        (np.float64, [-1e308, -1e308, 1e308], -1e308),
        (np.float64, [1e308, 1e308, -1e308, -1e308], 0),
        (np.float64, [FLOAT64.max, FLOAT64.max], math.inf),
        (np.float64, [1, 1e100, 1, -1e100], 2),
        (np.float64, [2.0**53, 1, 1], 2.0**53 + 2),
        (np.float32, [3e38, 3e38, -3e38], 3e38),
        (np.float32, [3e38, 3e38], math.inf),
        (np.float32, [2.0**24, 1, 1], 2.0**24 + 2),
        (np.float32, [1e8, 1, -1e8], 1),
    ],
)
def test_sum_in_range_is_right_whatever_it_passes_on_the_way(ordered, dtype, values, expected):
    idx = np.zeros(len(values), np.int32)
    option = {"indices_are_sorted": ordered}
    expected = np.array([expected], dtype)
    assert_same_bits(segops.segmented_sum(np.array(values, dtype), idx, 1, **option), expected)
    rows, unit = along_x(values, dtype), along_x(np.ones(len(values)), dtype)
    assert_same_bits(segops.segmented_sum(rows, idx, 1, **option)[:, 0], expected)
    assert_same_bits(segops.segmented_dot(rows, unit, idx, 1, **option), expected)
    assert_same_bits(segops.segmented_dot(unit, rows, idx, 1, **option), expected)
    _, vjp = segops.value_and_vjp(
        "segmented_mul", unit, np.ones(1, dtype), idx, 1, cotangent=rows, **option
    )
    assert_same_bits(vjp["y"], expected)


@each_route
@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (np.float64, [1e308] * 3, 1e308),
        (np.float64, [1e308, -1e308, 1e308, 1e308], 5e307),
        (np.float64, [FLOAT64.max] * 1000, FLOAT64.max),
        (np.float64, [FLOAT64.tiny] * 3, FLOAT64.tiny),
        (np.float32, [3e38] * 3, 3e38),
        (np.float32, [FLOAT32.max] * 1000, FLOAT32.max),
        (np.float32, [FLOAT32.tiny] * 3, FLOAT32.tiny),
    ],
)
def test_mean_in_range_is_right_whatever_its_sum(ordered, dtype, values, expected):
    idx = np.zeros(len(values), np.int32)
    value = segops.segmented_mean(np.array(values, dtype), idx, 1, indices_are_sorted=ordered)
    np.testing.assert_allclose(value, [dtype(expected)], rtol=np.finfo(dtype).eps)


@each_route
@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (np.float64, [1e-200, 1e-200], 1e-200),
        (np.float64, [1e200, 1e200], 1e200),
        (np.float64, [FLOAT64.max / 2, FLOAT64.max / 2], FLOAT64.max / 2),
        (np.float64, [FLOAT64.tiny, FLOAT64.tiny], FLOAT64.tiny),
        (np.float64, [3e-160, 4e-160], math.sqrt(12.5) * 1e-160),
        (np.float64, [1e200, 1e-200], 1e200 / math.sqrt(2)),
        (np.float64, [1e-150, 1e-200], 1e-150 / math.sqrt(2)),
        (np.float32, [1e-20, 1e-20], 1e-20),
        (np.float32, [1e20, 1e20], 1e20),
        (np.float32, [3e38, 3e38], 3e38),
        (np.float32, [FLOAT32.tiny, FLOAT32.tiny], FLOAT32.tiny),
        (np.float32, [1e20, 1e-20], 1e20 / math.sqrt(2)),
    ],
)
def test_norm_in_range_is_right_with_its_gradient(ordered, dtype, values, expected):
    x, idx = along_x(values, dtype), np.zeros(len(values), np.int32)
    value, vjp = segops.value_and_vjp("segmented_rms_norm", x, idx, 1, indices_are_sorted=ordered)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(value, [dtype(expected)], rtol=2 * eps)
    gradient = x / np.float64(expected) / len(values)
    np.testing.assert_allclose(vjp["x"], gradient, rtol=4 * eps, atol=np.finfo(dtype).tiny)


@each_route
@each_dtype
def test_long_segment_of_large_norms_stays_in_range(ordered, dtype):
    large = np.finfo(dtype).max / 4
    x, idx = np.full((10_000, 3), large, dtype), np.zeros(10_000, np.int32)
    value = segops.segmented_rms_norm(x, idx, 1, indices_are_sorted=ordered)
    np.testing.assert_allclose(value, [math.sqrt(3) * large], rtol=2 * np.finfo(dtype).eps)


@each_case
@each_dtype
@each_route
def test_numbers_below_the_normal_range_give_finite_derivatives(case, dtype, ordered):
    p = problem(case, ordered=ordered, dtype=dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    p = replace(p, operands=tuple(np.full_like(a, tiny) for a in p.operands))
    results = answers(p)
    for key in ("value", "vjp", "jvp"):
        for a in jax.tree.leaves(results[key]):
            assert np.isfinite(a).all()
    assert np.abs(np.asarray(results["value"])).max() <= 4 * np.finfo(dtype).tiny


@each_route
def test_rows_are_counted_past_what_a_float_holds(ordered):
    n = 2**24 + 3
    x, idx = np.zeros(n, np.float32), np.zeros(n, np.int8)
    x[-1] = 2**24
    value, vjp = segops.value_and_vjp("segmented_mean", x, idx, 1, indices_are_sorted=ordered)
    assert_same_bits(value, np.float32([2**24 / n]))
    assert_same_bits(vjp["x"][-3:], np.full(3, np.float32(1) / np.float32(n)))


# --- the two routes, and selection -------------------------------------------------------------


@each_case
@each_dtype
def test_order_of_rows_within_segments_is_all_that_counts(case, dtype):
    p = problem(case, SHUFFLED, dtype=dtype)
    order = np.argsort(p.idx, kind="stable")
    ordered = replace(select(p, order), indices_are_sorted=True)
    g, t = cotangent_of(p), tangents_of(p)
    moved = select_results(p, {"value": g, "vjp": {}, "jvp": g, "hvp": t}, order)
    expected = select_results(p, answers(p, g, t), order)
    results = answers(ordered, moved["value"], moved["hvp"])
    assert_same_bits(jax.tree.map(np.asarray, results), expected)


@each_case
def test_operands_are_left_as_they_were(case):
    p = problem(case)
    before = [a.copy() for a in p.operands]
    answers(p)
    arrays = [jnp.asarray(a) for a in p.operands]
    p.function(*arrays)
    assert_same_bits([np.asarray(a) for a in arrays], before)
    assert_same_bits(list(p.operands), before)


# --- ways to call --------------------------------------------------------------------------------


@each_case
@each_route
def test_operations_and_derivatives_work_with_jit_switched_off(case, ordered):
    p = problem(case, ordered=ordered)
    expected = answers(p)
    with jax.disable_jit():
        assert_same_bits(answers(p)["value"], expected["value"])
        assert_same_bits(answers(p)["vjp"], expected["vjp"])


@each_case
def test_every_device_computes_the_same_bits(case, mesh):
    p = problem(case)
    for device in mesh.devices.flat:
        operands = [jax.device_put(a, device) for a in p.operands]
        value = p.function(*operands)
        assert value.devices() == {device}
        assert_same_bits(np.asarray(value), np.asarray(p.value))


@each_case
def test_layouts_of_arrays_on_the_device_are_read_as_they_index(case):
    p = problem(case)
    turned = [np.ascontiguousarray(np.moveaxis(a, 0, -1)) for a in p.operands]
    function = jax.jit(lambda *t: p.function(*(jnp.moveaxis(a, -1, 0) for a in t)))
    assert_same_bits(function(*turned), p.value)


@pytest.mark.parametrize("name", ["x", "idx"])
def test_mask_of_a_masked_array_is_never_ignored(name):
    arguments = {"x": np.ones(3), "idx": np.zeros(3, np.int32), "num_segments": 1}
    arguments[name] = np.ma.masked_array(arguments[name], mask=[False, True, False])
    with pytest.raises((TypeError, ValueError), match="masked"):
        segops.segmented_sum(**arguments)


def test_debugging_switches_of_jax_find_nothing():
    x, idx = np.zeros((4, 3)), np.array([0, 0, 2, 9])

    def f(x):
        return jnp.sum(segops.segmented_rms_norm(x, idx, 3))

    with jax.debug_nans(True), jax.check_tracer_leaks(True):
        assert not jax.grad(f)(x).any()
        assert not jax.jit(jax.hessian(f))(x).any()
