"""`vmap` over every operand and the ids: each row of a batch is a problem of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from segops._primitives import bind, sum_p
from tests.library.helpers import (
    CASES,
    IN_ORDER,
    PROBLEMS,
    SEGMENTS,
    SHUFFLED,
    SORTED_PROBLEMS,
    TOGETHER,
    assert_close,
    assert_same_bits,
    curved,
    loss,
    named,
    operands_of,
    problem,
)

BATCH = 3


def batch_of(p, seed=7):
    """Return a batch of operands, and a batch of ids that differ from row to row."""
    rows = [operands_of(p.case, len(p.idx), p.num_segments, seed + b) for b in range(BATCH)]
    ids = np.stack([np.roll(p.idx, b) for b in range(BATCH)])
    if p.indices_are_sorted:
        ids = np.sort(np.where(ids == 3, np.arange(BATCH)[:, None], ids), axis=1)
    return [np.stack(arrays) for arrays in zip(*rows, strict=True)], ids.astype(np.int32)


def choices(p):
    """Return which of (*operands, idx) are mapped: each alone, operands together, all together."""
    count = len(p.operands)
    alone = [(k,) for k in range(count + 1)]
    pairs = [tuple(range(count)), (0, count)] if count > 1 else []
    return [*alone, *pairs, tuple(range(count + 1))]


MAPPED = [(p, mapped) for p in PROBLEMS + SORTED_PROBLEMS for mapped in choices(p)]


def arranged(p, mapped, axis=0):
    """Return the arguments with a batch in those mapped, and the `in_axes` that say so."""
    operands, ids = batch_of(p)
    shared, batched = [*p.operands, p.idx], [*operands, ids]
    axes = [min(axis, shared[k].ndim) if k in mapped else None for k in range(len(shared))]
    arguments = [
        shared[k] if a is None else np.moveaxis(batched[k], 0, a) for k, a in enumerate(axes)
    ]
    return arguments, axes


def rows_of(arguments, axes):
    for b in range(BATCH):
        yield [
            a if axis is None else np.take(a, b, axis)
            for a, axis in zip(arguments, axes, strict=True)
        ]


def stacked(function, arguments, axes):
    """Call a function row by row, without `vmap`."""
    results = [function(*row) for row in rows_of(arguments, axes)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def with_ids(function):
    return lambda *arguments: function(*arguments[:-1], idx=arguments[-1])


@pytest.mark.parametrize(("p", "mapped"), MAPPED, ids=named)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_batched_value_is_bit_for_bit_that_of_each_row(p, mapped, axis, run):
    arguments, axes = arranged(p, mapped, axis)
    actual = run(jax.vmap(with_ids(p.function), in_axes=axes))(*arguments)
    assert_same_bits(actual, stacked(with_ids(p.function), arguments, axes))
    loops = [p.case.oracle(*row, p.num_segments) for row in rows_of(arguments, axes)]
    assert_close(actual, np.stack(loops), rtol=1e-13)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_out_axis_is_honoured(case, run):
    p = problem(case)
    arguments, axes = arranged(p, range(len(p.operands) + 1))
    expected = stacked(with_ids(p.function), arguments, axes)
    actual = run(jax.vmap(with_ids(p.function), in_axes=axes, out_axes=-1))(*arguments)
    assert_same_bits(actual, jnp.moveaxis(expected, 0, -1))


@pytest.mark.parametrize(("p", "mapped"), MAPPED, ids=named)
def test_gradient_of_each_row_is_that_of_the_row_alone(p, mapped, run):
    arguments, axes = arranged(p, mapped)
    argnums = tuple(range(len(p.operands)))

    def gradient(function):
        return lambda *a: jax.grad(loss(lambda *u: function(*u, idx=a[-1])), argnums)(*a[:-1])

    actual = run(jax.vmap(gradient(p.function), in_axes=axes))(*arguments)
    assert_close(actual, stacked(gradient(p.composed), arguments, axes))


@pytest.mark.parametrize(("p", "mapped"), MAPPED, ids=named)
def test_gradient_through_vmap_sums_over_what_the_batch_shares(p, mapped, run):
    arguments, axes = arranged(p, mapped)
    argnums = tuple(range(len(p.operands)))
    *operands, ids = arguments

    def total(function):
        mapped_function = jax.vmap(with_ids(function), in_axes=axes)
        return jax.grad(loss(lambda *u: mapped_function(*u, ids)), argnums)

    def total_by_rows(*u):
        rows = list(rows_in_jax((*u, ids), axes))
        return jnp.stack([p.composed(*row[:-1], idx=row[-1]) for row in rows])

    expected = jax.grad(loss(total_by_rows), argnums)(*operands)
    assert_close(run(total(p.function))(*operands), expected)


def rows_in_jax(arguments, axes):
    for b in range(BATCH):
        yield [
            a if axis is None else jnp.take(jnp.asarray(a), b, axis)
            for a, axis in zip(arguments, axes, strict=True)
        ]


@pytest.mark.parametrize(("p", "argnums"), TOGETHER + IN_ORDER, ids=named)
@pytest.mark.parametrize(
    "order", [(jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacfwd)], ids=["fwd-rev", "rev-fwd"]
)
def test_second_derivatives_of_each_row_are_those_of_the_row_alone(p, argnums, order):
    outer, inner = order
    arguments, axes = arranged(p, range(len(p.operands) + 1))

    def second(function):
        def of_row(*a):
            return outer(inner(curved(lambda *u: function(*u, idx=a[-1])), argnums), argnums)(
                *a[:-1]
            )

        return of_row

    actual = jax.jit(jax.vmap(second(p.function), in_axes=axes))(*arguments)
    assert_close(actual, stacked(jax.jit(second(p.composed)), arguments, axes), atol=1e-11)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_nested_vmap_maps_different_arguments_at_each_level(p, run):
    (first, *_), ids = batch_of(p)
    rest = p.operands[1:]
    outer_first = jax.vmap(
        jax.vmap(lambda a, i: p.function(a, *rest, idx=i), in_axes=(0, None)), in_axes=(None, 0)
    )
    inner_first = jax.vmap(
        jax.vmap(lambda a, i: p.function(a, *rest, idx=i), in_axes=(None, 0)), in_axes=(0, None)
    )
    expected = jnp.stack([jnp.stack([p.function(a, *rest, idx=i) for a in first]) for i in ids])
    assert_same_bits(run(outer_first)(first, ids), expected)
    assert_same_bits(run(inner_first)(first, ids), jnp.swapaxes(expected, 0, 1))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_nested_vmap_over_all_arguments_twice(p, run):
    operands, ids = batch_of(p)
    twice = [np.stack([a, -a]) for a in operands]
    both = np.stack([ids, ids[:, ::-1]])
    expected = np.stack(
        [
            np.stack(
                [
                    p.case.oracle(*(a[o, b] for a in twice), both[o, b], SEGMENTS)
                    for b in range(BATCH)
                ]
            )
            for o in range(2)
        ]
    )
    assert_close(run(jax.vmap(jax.vmap(with_ids(p.function))))(*twice, both), expected, rtol=1e-13)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_gradient_of_a_nested_vmap(p, run):
    (first, *_), ids = batch_of(p)
    rest = p.operands[1:]

    def total(function):
        inner = jax.vmap(lambda a, i, *r: function(a, *r, idx=i), (0, None, *[None] * len(rest)))
        outer = jax.vmap(inner, (None, 0, *[None] * len(rest)))
        return jax.grad(loss(lambda a, *r: outer(a, ids, *r)), tuple(range(1 + len(rest))))

    assert_close(run(total(p.function))(first, *rest), total(p.composed)(first, *rest))


NEIGHBOURS = np.array([-1, SEGMENTS, 2 * SEGMENTS - 1, -SEGMENTS, 2**31 - 1, -(2**31), 0], np.int32)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("ordered", [False, True])
def test_id_out_of_range_in_one_row_never_lands_in_a_neighbour(case, ordered, run):
    ids = np.stack([NEIGHBOURS, NEIGHBOURS[::-1], np.roll(NEIGHBOURS, 3)])
    ids = np.sort(ids, axis=1) if ordered else ids
    rows = [operands_of(case, len(NEIGHBOURS), SEGMENTS, seed) for seed in range(len(ids))]
    operands = [np.stack(arrays) for arrays in zip(*rows, strict=True)]

    def function(*arguments):
        return case.op(*arguments, SEGMENTS, indices_are_sorted=ordered)

    expected = np.stack([case.oracle(*row, i, SEGMENTS) for row, i in zip(rows, ids, strict=True)])
    assert_close(run(jax.vmap(function))(*operands, ids), expected, rtol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_gradient_of_a_row_with_ids_out_of_range_takes_nothing_from_a_neighbour(case, run):
    p = problem(case, NEIGHBOURS)
    rows = [operands_of(case, len(NEIGHBOURS), SEGMENTS, seed) for seed in range(3)]
    operands = [np.stack(arrays) for arrays in zip(*rows, strict=True)]
    argnums = tuple(range(len(operands)))
    gradient = run(jax.vmap(jax.grad(loss(p.function), argnums)))
    expected = [jax.grad(loss(p.composed), argnums)(*row) for row in rows]
    assert_close(gradient(*operands), jax.tree.map(lambda *g: jnp.stack(g), *expected))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_nan_in_one_row_of_a_batch_stays_in_its_row(p, run):
    operands, ids = batch_of(p)
    poisoned = [a.copy() for a in operands]
    for a in poisoned:
        a[1] = np.nan
    argnums = tuple(range(len(operands)))

    def both(*arguments):
        f = loss(lambda *u: p.function(*u, idx=arguments[-1]))
        return p.function(*arguments[:-1], idx=arguments[-1]), jax.grad(f, argnums)(*arguments[:-1])

    batched = run(jax.vmap(both))
    actual, clean = batched(*poisoned, ids), batched(*operands, ids)
    others = np.array([0, 2])
    assert_same_bits(*(jax.tree.map(lambda a: a[others], r) for r in (actual, clean)))
    assert np.isnan(actual[0][1]).any()


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_batch_of_no_rows_gives_an_empty_result(p, run):
    operands, ids = batch_of(p)
    empty = [a[:0] for a in (*operands, ids)]
    value = run(jax.vmap(with_ids(p.function)))(*empty)
    assert (value.shape, value.dtype) == ((0, *p.expected.shape), np.float64)
    shared = run(jax.vmap(lambda a: p.function(a, *p.operands[1:])))(operands[0][:0])
    assert shared.shape == (0, *p.expected.shape)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_gradient_over_a_batch_of_no_rows_is_zero_in_what_it_shares(p):
    _, ids = batch_of(p)
    shared = jax.vmap(lambda a, i: p.function(a, *p.operands[1:], idx=i), in_axes=(None, 0))
    gradient = jax.grad(loss(lambda a: shared(a, ids[:0])))(p.operands[0])
    assert_same_bits(gradient, np.zeros_like(p.operands[0]))
    twice = jax.vmap(jax.vmap(lambda a: p.function(a, *p.operands[1:])))
    assert twice(np.zeros((2, 0, *p.operands[0].shape))).shape == (2, 0, *p.expected.shape)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize(("rows", "segments"), [(0, 3), (4, 0), (0, 0)])
def test_batch_of_problems_without_rows_or_segments_gives_zeros(case, rows, segments):
    p = problem(case, np.zeros(rows, np.int32), segments)
    operands = [np.stack([a, a]) for a in p.operands]
    actual = jax.vmap(p.function)(*operands)
    assert_same_bits(actual, np.zeros((2, *p.expected.shape)))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_batch_of_one_row_is_that_row(p, run):
    arguments = [a[None] for a in (*p.operands, p.idx)]
    assert_same_bits(run(jax.vmap(with_ids(p.function)))(*arguments), p.value[None])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_ids_of_other_widths_are_mapped_like_int32(dtype, run):
    ids = np.stack([SHUFFLED % 7, SHUFFLED[::-1] % 7])
    x = operands_of(CASES[1], ids.shape[1], SEGMENTS)[0]
    mapped = run(jax.vmap(lambda i: segops.segmented_sum(x, i, SEGMENTS)))
    assert_same_bits(mapped(ids.astype(dtype)), mapped(ids))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_batch_is_one_launch(p):
    operands, ids = batch_of(p)
    jaxpr = jax.make_jaxpr(jax.vmap(with_ids(p.function)))(*operands, ids)
    assert str(jaxpr).count("= segops_") == 1


@pytest.mark.parametrize("axis", range(4))
def test_batching_rule_takes_the_mapped_axis_from_where_it_is(axis):
    """The operations bring it to the front before; a rule of the family must not count on that."""
    x, idx = np.arange(24.0).reshape(2, 1, 4, 3), SHUFFLED[None, :4]

    def bound(rows):
        return bind(sum_p, rows, idx, num_segments=SEGMENTS, mean=False, indices_are_sorted=False)

    actual = jax.vmap(bound, in_axes=axis)(np.moveaxis(x, 0, axis))
    assert_same_bits(actual, jnp.stack([bound(jnp.asarray(rows)) for rows in x]))
