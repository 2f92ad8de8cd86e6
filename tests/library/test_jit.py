"""`jit`: shapes without compute, donation, static segment counts and no needless compilation."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.helpers import (
    CASES,
    PROBLEMS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    directions,
    loss,
    named,
    operands_of,
    problem,
)


@contextlib.contextmanager
def compilations():
    """Count what XLA compiles in the block."""
    counted = []

    def listener(event, _seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_ids_may_be_an_argument_or_a_constant_of_the_compiled_function(p):
    as_argument = jax.jit(lambda *a: p.function(*a[:-1], idx=a[-1]))(*p.operands, p.idx)
    as_constant = jax.jit(p.function)(*p.operands)
    assert_same_bits(as_argument, as_constant)
    assert_same_bits(as_argument, p.value)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eval_shape_tells_shape_and_dtype_without_computing(case, dtype):
    p = problem(case, dtype=dtype)
    out = jax.eval_shape(p.function, *p.operands)
    assert (out.shape, out.dtype) == (p.expected.shape, dtype)
    argnums = tuple(range(len(p.operands)))
    gradients = jax.eval_shape(jax.grad(loss(p.function), argnums), *p.operands)
    assert [(g.shape, g.dtype) for g in gradients] == [(a.shape, a.dtype) for a in p.operands]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_eval_shape_needs_no_array_of_that_size(case):
    sizes = {"N": 2**28, "S": 2**20}
    shapes = [
        jax.ShapeDtypeStruct([n if isinstance(n, int) else sizes[n] for n in shape], np.float32)
        for shape in case.shapes.values()
    ]
    ids = jax.ShapeDtypeStruct((2**28,), np.int32)
    out = jax.eval_shape(lambda *a: case.op(*a, 2**20), *shapes, ids)
    assert out.shape[0] == (2**28 if case.broadcasts else 2**20)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_buffer_donated_and_overwritten_is_read_first(case):
    p = problem(case)
    first, *rest = map(jnp.asarray, p.operands)
    overwriting = jax.jit(lambda a, *r: (p.function(a, *r), 2 * a), donate_argnums=0)
    value, doubled = overwriting(first, *rest)
    assert first.is_deleted()
    assert_same_bits(value, p.value)
    assert_same_bits(doubled, 2 * p.operands[0])


def test_donated_buffer_in_a_loop_of_steps():
    p = problem(CASES[6])
    step = jax.jit(lambda x: x + p.function(x, p.operands[1]), donate_argnums=0)
    x, expected = jnp.asarray(p.operands[0]), p.operands[0]
    for _ in range(4):
        x = step(x)
        expected = expected + p.case.oracle(expected, p.operands[1], p.idx, p.num_segments)
    assert_close(x, expected, rtol=1e-13)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_num_segments_is_static_by_name_and_by_position(case):
    p = problem(case)
    by_name = jax.jit(case.op, static_argnames=("num_segments", "indices_are_sorted"))
    by_position = jax.jit(case.op, static_argnums=len(p.operands) + 1)
    assert_same_bits(by_name(*p.operands, p.idx, num_segments=p.num_segments), p.value)
    assert_same_bits(by_position(*p.operands, p.idx, p.num_segments), p.value)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_traced_num_segments_is_refused_by_name(case):
    p = problem(case)
    with pytest.raises(segops.ArgumentTypeError, match="`num_segments` is traced") as caught:
        jax.jit(case.op)(*p.operands, p.idx, p.num_segments)
    assert caught.value.argument == "num_segments"


@pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)
def test_second_call_of_the_same_shape_compiles_nothing(p):
    argnums = tuple(range(len(p.operands)))

    def every(seed):
        operands = tuple(map(jnp.asarray, operands_of(p.case, len(p.idx), p.num_segments, seed)))
        tangents = tuple(map(jnp.asarray, directions(operands)))
        gradient = jax.grad(loss(p.function), argnums)
        jax.block_until_ready(
            (
                p.function(*operands),
                gradient(*operands),
                jax.jvp(p.function, operands, tangents),
                jax.jvp(gradient, operands, tangents),
                jax.vmap(p.function)(*(jnp.stack([a, a]) for a in operands)),
            )
        )

    every(1)
    every(2)
    with compilations() as counted:
        every(3)
    assert not counted


@pytest.mark.parametrize("case", CASES, ids=named)
def test_each_num_segments_compiles_once_and_never_again(case):
    idx = np.array([0, 0, 1], np.int32)
    arguments = {n: operands_of(case, 3, n) for n in range(1, 21)}
    traced = []

    def function(*operands, num_segments):
        traced.append(num_segments)
        return case.op(*operands, idx, num_segments)

    jitted = jax.jit(function, static_argnames="num_segments")
    with compilations() as counted:
        for _ in range(3):
            for n, operands in arguments.items():
                jitted(*operands, num_segments=n)
    assert traced == list(range(1, 21))
    assert len(counted) == 20


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_compiled_function_holds_no_copy_of_its_arguments(p):
    rows = 4096
    idx = jax.ShapeDtypeStruct((rows,), np.int32)
    operands = operands_of(p.case, rows, 64, dtype=np.float32)
    lowered = jax.jit(lambda *a: p.case.op(*a, 64)).lower(*operands, idx)
    assert len(lowered.as_text()) < 20_000


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_compiled_ahead_of_time(p):
    compiled = jax.jit(p.function).lower(*p.operands).compile()
    assert_same_bits(compiled(*p.operands), p.value)
    argnums = tuple(range(len(p.operands)))
    gradient = jax.jit(jax.grad(loss(p.function), argnums))
    assert_same_bits(gradient.lower(*p.operands).compile()(*p.operands), gradient(*p.operands))
