"""`value_and_vjp`, `jvp` and `hvp`: results by argument name, of any operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.helpers import (
    PROBLEMS,
    SORTED_PROBLEMS,
    assert_close,
    assert_same_bits,
    directions,
    named,
    problem,
)

every_problem = pytest.mark.parametrize("p", PROBLEMS + SORTED_PROBLEMS, ids=named)


def names(p):
    return tuple(p.case.shapes)


def by_name(p, arrays):
    return dict(zip(names(p), arrays, strict=True))


def arguments(p, operands=None):
    return (*(p.operands if operands is None else operands), p.idx, p.num_segments)


def options(p):
    return {"indices_are_sorted": p.indices_are_sorted}


def cotangent_of(p):
    return directions((p.expected,), seed=3)[0]


def product(p, cotangent):
    """Return the Hessian-vector product of the composition."""

    def pulled(*operands):
        return jax.vjp(p.composed, *operands)[1](jnp.asarray(cotangent))

    return jax.jvp(pulled, p.operands, directions(p.operands))[1]


@every_problem
def test_value_and_cotangents_by_name(p, run):
    ct = cotangent_of(p)

    def call(*operands):
        return segops.value_and_vjp(p.case.op, *arguments(p, operands), cotangent=ct, **options(p))

    value, cotangents = run(call)(*p.operands)
    assert_same_bits(value, p.value)
    assert_close(cotangents, by_name(p, jax.vjp(p.composed, *p.operands)[1](ct)))


@every_problem
def test_tangent_by_name(p, run):
    tangents = directions(p.operands)

    def call(*t):
        return segops.jvp(p.case.op, *arguments(p), tangents=by_name(p, t), **options(p))

    assert_close(run(call)(*tangents), jax.jvp(p.composed, p.operands, tangents)[1])


@every_problem
def test_hessian_vector_products_by_name(p, run):
    ct = cotangent_of(p)

    def call(*t):
        tangents = by_name(p, t)
        return segops.hvp(p.case.op, *arguments(p), tangents=tangents, cotangent=ct, **options(p))

    actual = run(call)(*directions(p.operands))
    assert_close(actual, by_name(p, product(p, ct)))


@every_problem
def test_cotangent_is_ones_unless_given(p):
    ones = np.ones_like(p.expected)
    call = (p.case.op, *arguments(p))
    tangents = by_name(p, directions(p.operands))
    assert_same_bits(
        segops.value_and_vjp(*call, **options(p)),
        segops.value_and_vjp(*call, cotangent=ones, **options(p)),
    )
    assert_same_bits(
        segops.hvp(*call, tangents=tangents, **options(p)),
        segops.hvp(*call, tangents=tangents, cotangent=ones, **options(p)),
    )


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_tangent_left_out_is_zero(p):
    full = by_name(p, directions(p.operands))
    for name in names(p):
        alone = {name: full[name]}
        padded = {n: t if n == name else np.zeros_like(t) for n, t in full.items()}
        call = (p.case.op, *arguments(p))
        assert_same_bits(segops.jvp(*call, tangents=alone), segops.jvp(*call, tangents=padded))
        assert_same_bits(segops.hvp(*call, tangents=alone), segops.hvp(*call, tangents=padded))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_no_tangents_give_zeros(p):
    call = (p.case.op, *arguments(p))
    assert not segops.jvp(*call, tangents={}).any()
    products = segops.hvp(*call, tangents={})
    assert {n: a.shape for n, a in products.items()} == by_name(p, (a.shape for a in p.operands))
    assert not any(a.any() for a in products.values())


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_operation_by_name_is_the_operation(p):
    tangents = by_name(p, directions(p.operands))
    name = p.case.op.__name__
    for function, keywords in (
        (segops.value_and_vjp, {}),
        (segops.jvp, {"tangents": tangents}),
        (segops.hvp, {"tangents": tangents}),
    ):
        assert_same_bits(
            function(name, *arguments(p), **keywords),
            function(p.case.op, *arguments(p), **keywords),
        )


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_names_come_in_the_order_of_the_arguments_also_under_jit(p):
    tangents = by_name(p, directions(p.operands))
    _, cotangents = segops.value_and_vjp(p.case.op, *arguments(p))
    assert tuple(cotangents) == names(p)
    assert tuple(segops.hvp(p.case.op, *arguments(p), tangents=tangents)) == names(p)


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_derivatives_can_be_differentiated_and_batched(p):
    argnums = tuple(range(len(p.operands)))
    ct = cotangent_of(p)

    def pulled(*operands):
        _, cotangents = segops.value_and_vjp(p.case.op, *arguments(p, operands), cotangent=ct)
        return sum(jnp.sum(a**2) for a in cotangents.values())

    def expected(*operands):
        return sum(jnp.sum(a**2) for a in jax.vjp(p.composed, *operands)[1](ct))

    assert_close(
        jax.jit(jax.grad(pulled, argnums))(*p.operands), jax.grad(expected, argnums)(*p.operands)
    )
    stacked = [np.stack([a, -a]) for a in p.operands]
    batched = jax.vmap(pulled)(*stacked)
    assert_close(batched, jnp.stack([expected(*(a[b] for a in stacked)) for b in range(2)]))


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_cotangent_and_tangents_may_be_lists(p):
    ct, tangents = cotangent_of(p), by_name(p, directions(p.operands))
    lists = {name: t.tolist() for name, t in tangents.items()}
    call = (p.case.op, *arguments(p))
    assert_same_bits(
        segops.hvp(*call, tangents=lists, cotangent=ct.tolist()),
        segops.hvp(*call, tangents=tangents, cotangent=ct),
    )


@pytest.mark.parametrize("p", PROBLEMS, ids=named)
def test_num_segments_and_ids_may_be_given_by_name(p):
    by_position = segops.value_and_vjp(p.case.op, *arguments(p))
    named_arguments = {"idx": p.idx, "num_segments": p.num_segments}
    assert_same_bits(segops.value_and_vjp(p.case.op, *p.operands, **named_arguments), by_position)


def refused(argument, error, function, *call, **keywords):
    with pytest.raises(error) as caught:
        function(*call, **keywords)
    assert caught.value.argument == argument
    assert argument in str(caught.value)


MUL = PROBLEMS[6]


@pytest.mark.parametrize("function", [segops.value_and_vjp, segops.jvp, segops.hvp])
@pytest.mark.parametrize("op", ["segmented_prod", "sum", np.sum, "", 3])
def test_unknown_operation_is_refused(function, op):
    keywords = {} if function is segops.value_and_vjp else {"tangents": {}}
    with pytest.raises(segops.ArgumentValueError, match="segmented_sum") as caught:
        function(op, *arguments(MUL), **keywords)
    assert caught.value.argument == "op"


@pytest.mark.parametrize("function", [segops.jvp, segops.hvp])
@pytest.mark.parametrize("name", ["z", "idx", "num_segments", ""])
def test_tangent_of_no_operand_is_refused(function, name):
    with pytest.raises(segops.ArgumentValueError, match="'x', 'y'") as caught:
        function("segmented_mul", *arguments(MUL), tangents={name: MUL.operands[0]})
    assert caught.value.argument.startswith("tangents")


@pytest.mark.parametrize("function", [segops.jvp, segops.hvp])
def test_tangent_of_another_shape_or_dtype_is_refused(function):
    x, y = MUL.operands
    call = ("segmented_mul", *arguments(MUL))
    refused("tangents.x", segops.ArgumentValueError, function, *call, tangents={"x": x[1:]})
    refused("tangents.y", segops.ArgumentValueError, function, *call, tangents={"y": y[:, None]})
    narrow = {"x": x.astype(np.float32)}
    refused("tangents.x", segops.ArgumentTypeError, function, *call, tangents=narrow)
    whole = {"x": x.astype(np.int32)}
    refused("tangents.x", segops.ArgumentTypeError, function, *call, tangents=whole)


@pytest.mark.parametrize("function", [segops.value_and_vjp, segops.hvp])
def test_cotangent_of_another_shape_or_dtype_is_refused(function):
    keywords = {} if function is segops.value_and_vjp else {"tangents": {}}
    call = ("segmented_mul", *arguments(MUL))
    ct = cotangent_of(MUL)
    for bad, error in (
        (ct[:, 0], segops.ArgumentValueError),
        (ct[1:], segops.ArgumentValueError),
        (ct.astype(np.float32), segops.ArgumentTypeError),
        (ct.astype(complex), segops.ArgumentTypeError),
    ):
        refused("cotangent", error, function, *call, cotangent=bad, **keywords)


def test_bad_argument_of_the_operation_is_named():
    p = problem(PROBLEMS[6].case)
    x, y = p.operands
    with pytest.raises(segops.ArgumentValueError) as caught:
        segops.value_and_vjp("segmented_mul", x, y[1:], p.idx, p.num_segments)
    assert caught.value.argument == "y"
    with pytest.raises(segops.ArgumentTypeError) as caught:
        segops.value_and_vjp("segmented_mul", x.astype(int), y, p.idx, p.num_segments)
    assert caught.value.argument == "x"
