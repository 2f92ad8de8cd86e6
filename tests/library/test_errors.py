"""Every error names the argument at fault and what repairs it, before any work."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segops
from tests.library.axes import each_case
from tests.library.helpers import CASES, problem

# --- what an error is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (segops.ArgumentTypeError, (segops.ArgumentError, TypeError)),
        (segops.ArgumentValueError, (segops.ArgumentError, ValueError)),
        (segops.SegmentIdError, (segops.ArgumentValueError, ValueError)),
    ],
)
def test_errors_are_caught_as_the_built_in_ones(error, bases):
    assert all(issubclass(error, base) for base in bases)


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize(
    "error",
    [
        segops.ArgumentTypeError("x", "not good"),
        segops.ArgumentValueError("x", "not good"),
        segops.SegmentIdError("idx", "not good", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_reach_another_process_whole(error, again):
    other = again(error)
    assert (type(other), str(other), vars(other)) == (type(error), "not good", vars(error))


def refused(error, argument, repair, call, *args, **keywords):
    """Assert that a call is refused by an error that names the argument and the repair."""
    with pytest.raises(error) as raised:
        call(*args, **keywords)
    caught = raised.value
    assert type(caught) is error
    assert caught.argument == argument
    assert f"`{argument}" in str(caught)
    assert repair in str(caught)
    return caught


def of_case(case, **changes):
    """Call a case on a good problem of seven rows and three segments with arguments changed."""
    p = problem(case, [0, 2, 1, 0, 2, 2, 5], 3)
    arguments = dict(zip(case.shapes, p.operands, strict=True))
    arguments |= {"idx": p.idx, "num_segments": 3} | changes
    return case.op(**arguments)


def of_every_operand(change):
    return pytest.mark.parametrize(
        ("case", "name", "changed"),
        [
            pytest.param(case, name, change, id=f"{case}-{name}")
            for case in CASES
            for name in case.shapes
        ],
    )


# --- operands ------------------------------------------------------------------------------------

OTHER_DTYPES = [np.float16, jnp.bfloat16, np.int32, np.bool_, np.complex64, np.longdouble, object]


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=lambda d: np.dtype(d).name)
@of_every_operand(None)
def test_other_dtypes_are_refused(case, name, changed, dtype):
    del changed
    shape = [{"N": 7, "S": 3}.get(n, n) for n in case.shapes[name]]
    bad = np.ones(shape).astype(dtype)
    caught = refused(
        segops.ArgumentTypeError, name, f"{name}.astype('float32')", of_case, case, **{name: bad}
    )
    assert case.op.__name__ in str(caught)
    assert str(np.dtype(dtype)) in str(caught)


@pytest.mark.parametrize("value", [None, "rows", [None] * 7], ids=repr)
@each_case
def test_what_is_no_array_of_numbers_is_refused(case, value):
    name = next(iter(case.shapes))
    refused(
        segops.ArgumentTypeError, name, "pass float32 or float64", of_case, case, **{name: value}
    )


@each_case
def test_ragged_lists_are_refused_by_name(case):
    name = next(iter(case.shapes))
    refused(segops.ArgumentValueError, name, "pass", of_case, case, **{name: [[1.0], [1.0, 2.0]]})
    refused(segops.ArgumentValueError, "idx", "pass", of_case, case, idx=[[0], [0, 1]])


@pytest.mark.parametrize("case", [c for c in CASES if len(c.shapes) == 2], ids=repr)
def test_operands_of_two_dtypes_are_refused(case):
    first, second = case.shapes
    p = problem(case, np.zeros(7, np.int32), 3, dtype=np.float32)
    repair = f"{second}.astype({first}.dtype)"
    caught = refused(
        segops.ArgumentTypeError, second, repair, of_case, case, **{first: p.operands[0]}
    )
    assert "float64 but" in str(caught)


@of_every_operand(None)
def test_other_shapes_are_refused(case, name, changed):
    del changed
    shape = [{"N": 7, "S": 3}.get(n, n) for n in case.shapes[name]]
    wrong = [[], [*shape, 1], [shape[0], *(n + 1 for n in shape[1:]), *([4] * (len(shape) == 1))]]
    wanted = f"({', '.join(map(str, case.shapes[name]))}{',' if len(shape) == 1 else ''})"
    for bad in wrong:
        caught = refused(
            segops.ArgumentValueError, name, wanted, of_case, case, **{name: np.ones(bad)}
        )
        assert str(tuple(bad)) in str(caught)


@of_every_operand(None)
def test_other_lengths_are_refused(case, name, changed):
    del changed
    length = {"N": 7, "S": 3}[case.shapes[name][0]]
    of = {"N": "idx", "S": "num_segments"}[case.shapes[name][0]]
    for wrong in (length - 1, length + 1, 0, 1):
        rest = list(case.shapes[name][1:])
        bad = np.ones([wrong, *rest])
        caught = refused(
            segops.ArgumentValueError, name, "must be equal", of_case, case, **{name: bad}
        )
        assert f"`{of}`" in str(caught)
        assert str(wrong) in str(caught)
        assert str(length) in str(caught)


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(7),
        np.zeros(7, np.bool_),
        np.zeros(7, np.complex64),
        np.zeros(7, object),
        None,
        "idx",
        [0, 0, 0, 0, 0, 0, 2**70],
    ],
    ids=repr,
)
@each_case
def test_ids_that_are_no_integers_are_refused(case, bad):
    refused(segops.ArgumentTypeError, "idx", "pass integers", of_case, case, idx=bad)


@pytest.mark.parametrize("shape", [(), (7, 1), (1, 7)])
@each_case
def test_ids_of_another_shape_are_refused(case, shape):
    refused(segops.ArgumentValueError, "idx", "(N,)", of_case, case, idx=np.zeros(shape, np.int32))


@pytest.mark.parametrize("value", [None, 3.0, "3", True, np.bool_(True), np.array([3])], ids=repr)
@each_case
def test_number_of_segments_of_another_type_is_refused(case, value):
    caught = refused(
        segops.ArgumentTypeError,
        "num_segments",
        "pass the number",
        of_case,
        case,
        num_segments=value,
    )
    assert repr(value) in str(caught)


@pytest.mark.parametrize("value", [-1, 2**31, 2**40, -(2**63)])
@each_case
def test_number_of_segments_out_of_range_is_refused(case, value):
    refused(
        segops.ArgumentValueError, "num_segments", "2**31 - 1", of_case, case, num_segments=value
    )


@pytest.mark.parametrize(
    "value", [3, np.int64(3), np.uint8(3), np.array(3), jnp.int32(3)], ids=repr
)
@each_case
def test_number_of_segments_may_be_any_integer(case, value):
    np.testing.assert_array_equal(of_case(case, num_segments=value), of_case(case))


@each_case
def test_traced_promise_of_order_is_refused(case):
    refused(
        segops.ArgumentTypeError,
        "indices_are_sorted",
        "pass True or False",
        jax.jit(lambda s: of_case(case, indices_are_sorted=s)),
        True,
    )


@each_case
def test_gradient_in_ids_is_refused_by_jax(case):
    p = problem(case)
    with pytest.raises(TypeError, match=r"real- or complex-valued inputs"):
        jax.grad(lambda idx: jnp.sum(p.function(*p.operands, idx=idx)))(jnp.asarray(p.idx))


@each_case
def test_errors_are_raised_while_tracing_and_before_any_work(case):
    p = problem(case)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in p.operands]
    wrong = jax.ShapeDtypeStruct((len(p.idx) + 1,), np.int32)
    with pytest.raises(segops.ArgumentValueError, match="must be equal"):
        jax.eval_shape(lambda *a: case.op(*a, p.num_segments), *shapes, wrong)


@each_case
def test_promise_is_given_by_keyword_alone(case):
    p = problem(case)
    with pytest.raises(TypeError, match="positional"):
        case.op(*p.operands, p.idx, p.num_segments, True)


# --- derivatives by name -------------------------------------------------------------------------


def of_derivative(function, case, **keywords):
    p = problem(case)
    return function(case.op, *p.operands, p.idx, p.num_segments, **keywords)


@pytest.mark.parametrize("op", ["sum", "", None, 3, len, jnp.sum, jax.jit(segops.segmented_sum)])
@pytest.mark.parametrize("function", [segops.value_and_vjp, segops.jvp, segops.hvp])
def test_what_is_no_operation_is_refused(function, op):
    keywords = {} if function is segops.value_and_vjp else {"tangents": {}}
    caught = refused(
        segops.ArgumentValueError,
        "op",
        "segmented_matvec",
        function,
        *(op, np.ones(2), np.zeros(2, np.int32), 1),
        **keywords,
    )
    assert "pass one of" in str(caught)


@pytest.mark.parametrize("function", [segops.jvp, segops.hvp])
@pytest.mark.parametrize("name", ["idx", "num_segments", "z", ""])
@each_case
def test_tangent_of_what_cannot_be_differentiated_is_refused(function, name, case):
    caught = refused(
        segops.ArgumentValueError,
        "tangents",
        "differentiable arguments are",
        *(of_derivative, function, case),
        tangents={name: np.ones(1)},
    )
    assert all(repr(operand) in str(caught) for operand in case.shapes)


@pytest.mark.parametrize("function", [segops.jvp, segops.hvp])
@of_every_operand(None)
def test_tangent_unlike_its_operand_is_refused(function, case, name, changed):
    del changed
    operand = dict(zip(case.shapes, problem(case).operands, strict=True))[name]
    for bad, error, repair in [
        (operand[1:], segops.ArgumentValueError, str(operand.shape)),
        (operand.astype(np.float32), segops.ArgumentTypeError, f"dtype of `{name}`, float64"),
        (operand.astype(np.int32), segops.ArgumentTypeError, "pass float32 or float64"),
    ]:
        refused(
            error, f"tangents.{name}", repair, of_derivative, function, case, tangents={name: bad}
        )


@pytest.mark.parametrize("function", [segops.value_and_vjp, segops.hvp])
@each_case
def test_cotangent_unlike_the_value_is_refused(function, case):
    value = problem(case).expected
    keywords = {} if function is segops.value_and_vjp else {"tangents": {}}
    for bad, error, repair in [
        (value[1:], segops.ArgumentValueError, str(value.shape)),
        (value.astype(np.float32), segops.ArgumentTypeError, "dtype of the value, float64"),
        (value.astype(np.int32), segops.ArgumentTypeError, "pass float32 or float64"),
    ]:
        refused(
            *(error, "cotangent", repair, of_derivative, function, case), cotangent=bad, **keywords
        )


@pytest.mark.parametrize("function", [segops.value_and_vjp, segops.jvp, segops.hvp])
def test_bad_call_of_the_operation_is_refused_as_by_the_operation(function):
    keywords = {} if function is segops.value_and_vjp else {"tangents": {}}
    with pytest.raises(TypeError, match="num_segments"):
        function("segmented_sum", np.ones(2), np.zeros(2, np.int32), **keywords)
    with pytest.raises(TypeError, match="nonsense"):
        function("segmented_sum", np.ones(2), np.zeros(2, np.int32), 1, nonsense=1, **keywords)


# --- ids that are looked at ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64, ">i4", list])
def test_check_names_the_first_bad_id(kind):
    ids = [0, 1, 2, 3, 9, 0]
    ids = ids if kind is list else np.array(ids, kind)
    caught = refused(segops.SegmentIdError, "idx", "drop", segops.check_segment_ids, ids, 3)
    assert caught.position == 3
    assert "`idx[3]` is 3, outside [0, 3)" in str(caught)


def test_check_names_the_first_id_out_of_order():
    ids = np.array([0, 1, 1, 2, 0, 1], np.uint8)
    segops.check_segment_ids(ids, 3)
    caught = refused(
        segops.SegmentIdError,
        *("idx", "withdraw the promise", segops.check_segment_ids, ids, 3),
        indices_are_sorted=True,
    )
    assert caught.position == 4
    assert "`idx[4]` is 0 after 2" in str(caught)


@pytest.mark.parametrize("ids", [[], np.zeros(0, np.int32), [0, 0, 2, 2]])
def test_check_passes_good_ids(ids):
    assert segops.check_segment_ids(ids, 3, indices_are_sorted=True) is None


def test_check_refuses_what_are_no_ids():
    check = segops.check_segment_ids
    refused(segops.ArgumentTypeError, "idx", "pass integers", check, [0.5, 1.5], 3)
    refused(segops.ArgumentValueError, "idx", "(N,)", check, [[0, 1], [1, 5]], 3)
    refused(segops.ArgumentTypeError, "num_segments", "pass the number", check, [0, 1], None)


@pytest.mark.parametrize("bad", [[0, 1, 2, -1], [0, 3, 1, 2]], ids=repr)
@each_case
def test_debug_mode_refuses_ids_out_of_range(case, bad, monkeypatch):
    p = problem(case, bad, 3)
    p.function(*p.operands)
    monkeypatch.setenv("SEGOPS_CHECK", "1")
    at = next(k for k, i in enumerate(bad) if not 0 <= i < 3)
    caught = refused(segops.SegmentIdError, "idx", "drop", p.function, *p.operands)
    assert caught.position == at
    good = problem(case, [0, 2, 1], 3)
    good.function(*good.operands)


@each_case
def test_debug_mode_lets_traced_ids_pass(case, monkeypatch):
    p = problem(case, [0, 9, 1], 3)
    monkeypatch.setenv("SEGOPS_CHECK", "1")
    jax.jit(lambda idx: p.function(*p.operands, idx=idx))(p.idx)


@each_case
def test_debug_mode_looks_at_ids_of_a_traced_call_that_are_known(case, monkeypatch):
    p = problem(case, [0, 9, 1], 3)
    monkeypatch.setenv("SEGOPS_CHECK", "1")
    caught = refused(segops.SegmentIdError, "idx", "drop", jax.jit(p.function), *p.operands)
    assert caught.position == 1


@pytest.mark.parametrize("promise", ["no", 1, None, np.array([True, False])], ids=str)
def test_promise_of_order_that_is_no_bool_is_refused(promise):
    refused(
        segops.ArgumentTypeError,
        "indices_are_sorted",
        "pass True or False",
        lambda: segops.segmented_sum(np.ones(2), [0, 1], 2, indices_are_sorted=promise),
    )


@pytest.mark.parametrize("tangents", [None, np.ones(2), [("x", np.ones(2))]], ids=type)
@pytest.mark.parametrize("derivative", [segops.jvp, segops.hvp], ids=["jvp", "hvp"])
def test_tangents_that_are_no_mapping_are_refused(derivative, tangents):
    refused(
        segops.ArgumentTypeError,
        "tangents",
        "pass a mapping",
        lambda: derivative("segmented_sum", np.ones(2), [0, 1], 2, tangents=tangents),
    )


def test_float64_array_outside_of_x64_mode_is_refused():
    y = jax.numpy.ones((3, 3), np.float64)
    with jax.enable_x64(False):
        refused(
            segops.ArgumentTypeError,
            "x",
            "jax_enable_x64",
            lambda: segops.segmented_rms_norm(y, [0, 0, 1], 2),
        )
