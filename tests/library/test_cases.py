"""Faults that users of other segment and scatter operations reported cannot happen here."""

import math
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import segops
from tests.library.axes import (
    answers,
    assert_rows_dropped,
    each_case,
    each_dtype,
    each_route,
)
from tests.library.helpers import (
    CASES,
    assert_close,
    assert_same_bits,
    curved,
    directions,
    loss,
    problem,
)

REDUCTIONS = [case for case in CASES if not case.broadcasts]
each_reduction = pytest.mark.parametrize("case", REDUCTIONS, ids=repr)
each_sum = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith("sum")], ids=repr
)
each_mean = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith("mean")], ids=repr
)


def filled(case, values, idx, num_segments, *, ordered=False, dtype=np.float32):
    """Return a sum or mean whose rows hold one number each, in every entry."""
    p = problem(case, idx, num_segments, ordered=ordered, dtype=dtype)
    values = np.asarray(values, dtype).reshape(-1, *[1] * (p.operands[0].ndim - 1))
    rows = np.ascontiguousarray(np.broadcast_to(values, p.operands[0].shape))
    return p.__class__(case, (rows,), p.idx, num_segments, ordered)


def each_entry(case, values, dtype=np.float32):
    """Return the numbers in the shape of the case's value."""
    values = np.asarray(values, dtype)
    return np.repeat(values[:, None], 3, axis=1) if case.name.endswith("vec3") else values


# --- ids out of range --------------------------------------------------------------------------

IN_RANGE = [2, 0, 1, 0, 2]
OUT_OF_RANGE = {
    np.int8: [-1, -128, 127],
    np.uint8: [3, 255],
    np.int16: [-1, -(2**15), 2**15 - 1],
    np.uint16: [3, 2**16 - 1],
    np.int32: [-1, -3, -(2**31), 3, 2**30, 2**31 - 1],
    np.uint32: [3, 2**31, 2**32 - 1],
    np.int64: [-1, -(2**32), 1 - 2**32, -(2**63), 2**31, 2**32, 2**32 + 1, 2**63 - 1],
    np.uint64: [2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1],
}


def with_bad_ids(kind):
    """Return ids in and out of range in turns, of one integer type."""
    good, bad = IN_RANGE, OUT_OF_RANGE[kind]
    ids = [i for k in range(max(len(good), len(bad))) for i in (*good[k : k + 1], *bad[k : k + 1])]
    return np.array(ids, kind)


@each_sum
@each_route
def test_negative_ids_do_not_wrap_to_the_last_segments(case, ordered):
    p = filled(case, np.ones(10), [0, 1, 2, 3, 4, -1, -1, -1, -1, -1], 10, ordered=ordered)
    assert_same_bits(p.value, each_entry(case, [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]))


each_kind = pytest.mark.parametrize("kind", OUT_OF_RANGE, ids=lambda kind: kind.__name__)


@each_case
@each_kind
def test_rows_out_of_range_count_for_nothing(case, kind):
    p = problem(case, with_bad_ids(kind), 3)
    assert_rows_dropped(p, ~p.valid)


@each_case
@each_dtype
@each_route
def test_rows_out_of_range_count_for_nothing_on_every_route(case, dtype, ordered):
    p = problem(case, with_bad_ids(np.int64), 3, ordered=ordered, dtype=dtype)
    assert_rows_dropped(p, ~p.valid)


@each_case
@each_kind
def test_traced_ids_do_not_wrap_where_they_are_narrowed(case, kind):
    p = problem(case, with_bad_ids(kind), 3)
    inside = jax.jit(lambda idx: p.function(*p.operands, idx=idx))(p.idx)
    assert_same_bits(inside, p.value)


@each_sum
@each_route
def test_gradient_is_zero_where_every_id_is_too_large(case, ordered):
    p = filled(case, [0, 0], [2, 3], 2, ordered=ordered)
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(p.function(x)))(*p.operands)
    assert value == 0
    assert_same_bits(gradient, np.zeros_like(p.operands[0]))


def test_rejecting_bad_ids_names_the_first():
    x, idx = np.float32([1, 2, 3]), [0, -1, 1]
    assert segops.segmented_sum(x, idx, 2).tolist() == [1, 3]
    with pytest.raises(segops.SegmentIdError, match=r"idx\[1\].* -1") as raised:
        segops.check_segment_ids(idx, 2)
    assert raised.value.position == 1


@each_sum
@each_route
def test_smallest_id_writes_nowhere(case, ordered):
    p = filled(case, [-1e-30], [-(2**31)], 4, ordered=ordered)
    assert_same_bits(p.value, each_entry(case, [0, 0, 0, 0]))


@each_case
@each_route
def test_far_negative_ids_read_nothing(case, ordered):
    p = problem(case, [-9, -1024, 0], 1, ordered=ordered)
    assert_rows_dropped(p, ~p.valid)


@each_case
@each_route
def test_nothing_is_allocated_by_the_largest_id(case, ordered):
    p = problem(case, [0, 0, 2**30], 2, ordered=ordered, dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers(p)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < 2**30
    assert_rows_dropped(p, ~p.valid)


# --- order -------------------------------------------------------------------------------------


@each_sum
@each_dtype
def test_unsorted_ids_are_summed_right_without_a_word(case, dtype):
    p = filled(case, [1, 2, 3, 4, 5, 6], [2, 0, 1, 0, 1, 1], 3, dtype=dtype)
    assert_same_bits(p.value, each_entry(case, [6, 14, 1], dtype))


@each_case
def test_broken_promise_of_order_is_found_in_debug_mode(case, monkeypatch):
    p = problem(case, [2, 0, 1, 0, 1, 1], 3)
    monkeypatch.setenv("SEGOPS_CHECK", "1")
    with pytest.raises(segops.SegmentIdError, match=r"idx\[1\]") as raised:
        case.op(*p.operands, p.idx, p.num_segments, indices_are_sorted=True)
    assert (raised.value.argument, raised.value.position) == ("idx", 1)
    p.function(*p.operands)


# --- empty segments, empty inputs --------------------------------------------------------------


@each_route
def test_mean_moves_right_past_a_gap_in_the_ids(ordered):
    idx, weights = jnp.array([0, 0, 2, 2, 2]), jnp.array([2.0, -7.0, 3.0])

    def f(t):
        x = jnp.stack([t, t**2, 2 * t, t**2, 3 * t])
        return weights @ segops.segmented_mean(x, idx, 3, indices_are_sorted=ordered)

    value, slope = jax.jvp(f, (jnp.array(-60.0),), (jnp.array(1.0),))
    assert value == pytest.approx(6840, rel=1e-15)
    assert slope == pytest.approx(-234, rel=1e-15)
    assert jax.grad(f)(-60.0) == pytest.approx(-234, rel=1e-15)


@each_mean
@each_dtype
@each_route
def test_mean_has_its_gradient_past_an_empty_segment(case, dtype, ordered):
    p = filled(case, [1, 2, 3], np.repeat([0, 1, 2], [2, 0, 1]), 3, ordered=ordered, dtype=dtype)
    gradient = jax.grad(lambda x: jnp.sum(p.function(x)))(*p.operands)
    assert_same_bits(gradient, each_entry(case, [0.5, 0.5, 1], dtype))


@each_mean
@each_dtype
@each_route
def test_mean_of_no_rows_is_zero(case, dtype, ordered):
    p = filled(case, [1, 2, 3, 4], np.repeat([0, 1, 3], [1, 1, 2]), 4, ordered=ordered, dtype=dtype)
    assert_same_bits(p.value, each_entry(case, [1, 2, 0, 3.5], dtype))


@each_case
@each_dtype
@each_route
def test_no_rows_give_zeros_and_never_stale_memory(case, dtype, ordered):
    p = problem(case, np.zeros(0, np.int32), 3, ordered=ordered, dtype=dtype)
    for _ in range(5):
        stale = [jnp.full((k,), np.nan, dtype) for k in range(1, 40)]
        jax.block_until_ready(stale)
        del stale
        for a in jax.tree.leaves(answers(p)):
            assert not np.asarray(a).any()


@each_sum
@each_route
def test_first_segment_may_be_empty(case, ordered):
    p = filled(case, [1, 2, 3, 4], [1, 2, 2, 2], 3, ordered=ordered)
    assert_same_bits(p.value, each_entry(case, [0, 1, 9]))


# --- accumulation ------------------------------------------------------------------------------


@each_sum
@each_route
@pytest.mark.parametrize("n", [10_000, 1_000_000, 10_000_000])
def test_long_segments_do_not_drift(case, ordered, n):
    if case.name == "sum-vec3":
        n //= 4
    p = filled(case, np.full(n, 2 / n), np.zeros(n, np.int32), 1, ordered=ordered)
    np.testing.assert_allclose(p.value, 2, rtol=1.2e-7)


@each_route
def test_longest_exact_run_stays_within_two_places_of_the_float64_sum(ordered):
    x = np.random.default_rng(0).normal(1, 1, 2**24).astype(np.float32)
    idx = np.zeros(len(x), np.int8)
    exact = x.sum(dtype=np.float64)
    value = segops.segmented_sum(x, idx, 1, indices_are_sorted=ordered)
    assert abs(float(value[0]) - exact) <= 2 * np.spacing(np.float32(exact))
    average = segops.segmented_mean(x, idx, 1, indices_are_sorted=ordered)
    assert abs(float(average[0]) - exact / 2**24) <= 2 * np.spacing(np.float32(exact / 2**24))


ONES_AFTER_A_LARGE_ONE = np.float32([2**24, *np.ones(1000)])


@each_sum
@each_route
def test_small_rows_still_count_after_a_large_one(case, ordered):
    x = ONES_AFTER_A_LARGE_ONE
    p = filled(case, x, np.zeros(len(x), np.int32), 1, ordered=ordered)
    assert_same_bits(p.value, each_entry(case, [16778216]))


@each_route
def test_small_rows_still_count_in_every_reduction(ordered):
    x = ONES_AFTER_A_LARGE_ONE
    idx, option = np.zeros(len(x), np.int32), {"indices_are_sorted": ordered}
    rows = np.stack([x, np.zeros_like(x), np.zeros_like(x)], axis=1)
    ones = np.ones_like(rows)
    assert segops.segmented_dot(rows, ones, idx, 1, **option).tolist() == [16778216]
    _, vjp = segops.value_and_vjp(
        "segmented_mul", rows, np.float32([1]), idx, 1, cotangent=ones, **option
    )
    assert vjp["y"].tolist() == [16778216]
    matrices = np.zeros((1, 3, 3), np.float32)
    _, vjp = segops.value_and_vjp(
        "segmented_matvec", rows, matrices, idx, 1, cotangent=ones, **option
    )
    assert vjp["m"][0].tolist() == [[16778216] * 3, [0] * 3, [0] * 3]


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16], ids=["f16", "bf16"])
@each_case
def test_sixteen_bits_are_refused_and_not_summed_badly(case, dtype):
    p = problem(case, [0, 0], 1).astype(dtype)
    name = next(iter(case.shapes))
    with pytest.raises(segops.ArgumentTypeError, match=f"`{name}`.*float32"):
        p.function(*p.operands)


@each_mean
@each_dtype
def test_mean_of_many_rows_is_exact_to_the_last_place(case, dtype):
    x = np.random.default_rng(0).normal(size=10_000).astype(dtype)
    p = filled(case, x, np.zeros(len(x), np.int32), 1, dtype=dtype)
    expected = dtype(math.fsum(x.tolist()) / len(x))
    np.testing.assert_allclose(
        p.value, each_entry(case, [expected], dtype), rtol=np.finfo(dtype).eps
    )


@each_route
def test_opposite_rows_cancel(ordered):
    v = np.random.default_rng(0).normal(size=10_000)
    x, idx = np.stack([v, -v]).reshape(-1), np.zeros(20_000, np.int32)
    with jax.enable_x64(False):
        narrow = segops.segmented_sum(x, idx, 1, indices_are_sorted=ordered)
        assert narrow.dtype == np.float32
        assert narrow.tolist() == [0]
    wide = segops.segmented_sum(x, idx, 1, indices_are_sorted=ordered)
    assert abs(float(wide[0])) < 1e-24


@each_route
def test_gradient_of_a_shared_number_is_rounded_once(ordered):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 3)).astype(np.float32)
    g = rng.normal(size=x.shape).astype(np.float32)
    _, vjp = segops.value_and_vjp(
        "segmented_mul",
        *(x, np.float32([2]), np.zeros(len(x), np.int32), 1),
        cotangent=g,
        indices_are_sorted=ordered,
    )
    expected = math.fsum((x.astype(np.float64) * g).ravel().tolist())
    assert_same_bits(vjp["y"], np.float32([expected]))


@each_mean
@each_route
@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 3e38), (np.float64, 1.7e308)])
def test_mean_in_range_does_not_overflow_on_the_way(case, ordered, dtype, large):
    p = filled(case, [large] * 3, [0, 0, 0], 1, ordered=ordered, dtype=dtype)
    np.testing.assert_allclose(p.value, each_entry(case, [large], dtype), rtol=np.finfo(dtype).eps)
    gradient = jax.grad(lambda x: jnp.sum(p.function(x)))(*p.operands)
    assert_same_bits(gradient, each_entry(case, [1 / 3] * 3, dtype))


@each_route
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float32, 1e-20), (np.float32, 1e20), (np.float64, 1e-200), (np.float64, 1e200)],
)
def test_norm_in_range_does_not_leave_it_on_the_way(ordered, dtype, size):
    x, idx = np.full((2, 3), size, dtype), np.zeros(2, np.int32)
    value, vjp = segops.value_and_vjp("segmented_rms_norm", x, idx, 1, indices_are_sorted=ordered)
    eps = 2 * np.finfo(dtype).eps
    np.testing.assert_allclose(value, [math.sqrt(3) * size], rtol=eps)
    np.testing.assert_allclose(vjp["x"], np.full((2, 3), 1 / (2 * math.sqrt(3))), rtol=eps)


@each_route
def test_second_derivative_of_a_small_norm_does_not_overflow(ordered):
    c = 1e-14
    x, idx = np.full((2, 3), c, np.float32), np.zeros(2, np.int32)
    w = np.float32([[1, 2, 3], [4, 5, 6]])

    def f(x):
        return segops.segmented_rms_norm(x, idx, 1, indices_are_sorted=ordered)[0]

    expected = (w - 3.5) / (2 * math.sqrt(3) * c)
    reverse_over_reverse = jax.grad(lambda x: jnp.vdot(w, jax.grad(f)(x)))(x)
    forward_over_reverse = jax.jvp(jax.grad(f), (x,), (w,))[1]
    for second in (reverse_over_reverse, forward_over_reverse):
        np.testing.assert_allclose(second, expected, rtol=3e-6)


# --- differentiation ---------------------------------------------------------------------------


@each_route
def test_second_derivative_of_a_squared_sum_is_not_lost(ordered):
    def f(x):
        total = segops.segmented_sum(x, [0, 0, 1], 2, indices_are_sorted=ordered)
        return jnp.sum(total**2)

    expected = [[2, 2, 0], [2, 2, 0], [0, 0, 2]]
    x = jnp.array([0.0, 1.0, 2.0])
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            assert outer(inner(f))(x).tolist() == expected


@each_route
def test_rows_of_a_jacobian_do_not_mix(ordered):
    def f(x):
        return segops.segmented_sum(x, [0, 0, 1, 1, 1, 2], 3, indices_are_sorted=ordered)

    expected = [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]
    x = jnp.arange(1.0, 7.0)
    assert jax.jacrev(f)(x).tolist() == expected
    assert jax.jacfwd(f)(x).tolist() == expected


@each_route
@each_dtype
def test_norm_of_zeros_has_zero_derivatives(ordered, dtype):
    x, idx = np.zeros((2, 3), dtype), np.zeros(2, np.int32)

    def f(x):
        return segops.segmented_rms_norm(x, idx, 1, indices_are_sorted=ordered)[0]

    assert not jax.grad(f)(x).any()
    assert not jax.hessian(f)(x).any()


@each_route
def test_zero_norm_in_one_segment_leaves_the_hessian_finite(ordered):
    x = jnp.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])

    def f(x):
        return jnp.sum(segops.segmented_rms_norm(x, [0, 1], 2, indices_are_sorted=ordered))

    expected = np.zeros((2, 3, 2, 3))
    expected[1, :, 1, :] = (np.eye(3) - 1 / 3) / math.sqrt(3)
    np.testing.assert_allclose(jax.hessian(f)(x), expected, atol=1e-15)


@each_case
@each_route
def test_forward_mode_is_not_silently_zero(case, ordered):
    p = problem(case, ordered=ordered)
    t = directions(p.operands)

    def along(s):
        return curved(p.function)(*(a + s * d for a, d in zip(p.operands, t, strict=True)))

    h, at = 1e-6, 0.01
    slope = jax.jvp(along, (jnp.array(at),), (jnp.array(1.0),))[1]
    difference = (np.asarray(along(at + h)) - np.asarray(along(at - h))) / (2 * h)
    np.testing.assert_allclose(slope, difference, atol=1e-7)
    assert np.asarray(slope).any()


# --- vmap --------------------------------------------------------------------------------------


@each_route
def test_batch_with_shared_ids_is_not_folded_into_wrong_segments(ordered):
    x = jnp.array([[1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10, 12]])
    idx = jnp.array([0, 0, 1, 1, 1, 2])
    values = jax.vmap(lambda x: segops.segmented_sum(x, idx, 3, indices_are_sorted=ordered))(x)
    assert values.tolist() == [[3, 12, 6], [6, 24, 12]]


@each_case
@each_route
def test_gradients_batch(case, ordered):
    p = problem(case, ordered=ordered)
    batch = [np.stack(a) for a in zip(p.operands, directions(p.operands), strict=True)]
    gradient = jax.grad(loss(p.function), argnums=tuple(range(len(batch))))
    together = jax.vmap(gradient)(*batch)
    for k in range(2):
        alone = gradient(*(a[k] for a in batch))
        assert_close(tuple(g[k] for g in together), alone, rtol=1e-14)


# --- jit, sizes, sharding ----------------------------------------------------------------------


@each_case
def test_traced_number_of_segments_is_refused_by_name(case):
    p = problem(case)
    with pytest.raises(segops.ArgumentTypeError, match=r"num_segments.*static_argnames") as raised:
        jax.jit(lambda s: case.op(*p.operands, p.idx, s))(p.num_segments)
    assert raised.value.argument == "num_segments"


@each_case
def test_number_of_segments_is_never_inferred_from_the_ids(case):
    p = problem(case, [0, 3, 3], 4)
    with pytest.raises(segops.ArgumentTypeError, match=r"num_segments.*never inferred"):
        case.op(*p.operands, p.idx, None)


@each_case
def test_double_precision_input_without_x64_becomes_single(case):
    p = problem(case, np.zeros(3, np.int32), 1)
    with jax.enable_x64(False):
        value = p.function(*p.operands)
        assert value.dtype == np.float32
        assert_same_bits(value, p.astype(np.float32).value)


def test_cancellation_without_x64_keeps_the_small_row():
    with jax.enable_x64(False):
        value = segops.segmented_sum(np.array([1e8, 1, -1e8]), np.zeros(3, np.int32), 1)
        assert value.dtype == np.float32
        assert value.tolist() == [1]


def huge(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


TOO_MANY_ROWS = 2**31 // 3 + 1


@each_case
def test_rows_beyond_31_bits_are_refused_before_any_work(case):
    n = 2**31 if case.name.endswith("scalar") else TOO_MANY_ROWS
    sizes = {"N": n, "S": 2}
    operands = [huge([sizes.get(d, d) for d in shape]) for shape in case.shapes.values()]
    name = next(iter(case.shapes))
    with pytest.raises(segops.ArgumentValueError, match=f"`{name}`.*2\\*\\*31 - 1.*split"):
        jax.eval_shape(lambda *a: case.op(*a, 2), *operands, huge((n,), np.int32))


@each_case
def test_number_of_segments_beyond_31_bits_is_refused(case):
    p = problem(case)
    with pytest.raises(segops.ArgumentValueError, match="num_segments") as raised:
        case.op(*p.operands, p.idx, 2**31)
    assert raised.value.argument == "num_segments"


@pytest.mark.parametrize("op", [segops.segmented_sum, segops.segmented_mean])
def test_result_beyond_31_bits_is_refused(op):
    with pytest.raises(segops.ArgumentValueError, match=r"num_segments.*fewer"):
        jax.eval_shape(lambda x: op(x, [0, 0], 2**30), huge((2, 3)))


@each_reduction
def test_most_segments_there_can_be_have_a_shape(case):
    segments = (2**31 - 1) // (3 if case.name.endswith("vec3") else 1)
    operands = [huge([{"N": 3}.get(d, d) for d in shape]) for shape in case.shapes.values()]
    out = jax.eval_shape(lambda *a: case.op(*a, np.arange(3), segments), *operands)
    assert out.shape[0] == segments


@pytest.mark.parametrize("mode", ["shard_map", "jit"])
def test_sharded_rows_are_summed_over_every_device(mode, mesh):
    two = jax.sharding.Mesh(mesh.devices[:2], ("s",))
    rows, whole = PartitionSpec("s"), PartitionSpec()
    x, idx = (
        jax.device_put(a, NamedSharding(two, rows))
        for a in (np.arange(8.0), np.array([0, 0, 1, 1, 1, 2, 2, 3]))
    )

    def here(x, idx):
        return segops.segmented_sum(x, idx, 4)

    def summed(x, idx):
        return jax.lax.psum(here(x, idx), "s")

    spread = jax.shard_map(summed, mesh=two, in_specs=(rows, rows), out_specs=whole)
    f = {"shard_map": spread, "jit": here}[mode]
    assert jax.jit(f)(x, idx).tolist() == [1, 9, 11, 7]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(f(x, idx) ** 2)))(x)
    assert gradient.tolist() == [2, 2, 18, 18, 18, 22, 22, 14]
