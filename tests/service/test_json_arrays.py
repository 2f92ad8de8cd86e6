"""Nested lists to arrays and back."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_service.errors import InvalidArgumentError, NotJsonRepresentableError
from segops_service.json_arrays import decode, encode
from segops_service.operations import OPERATIONS

SUM = OPERATIONS["segmented_sum"]
MATVEC = OPERATIONS["segmented_matvec"]


def _body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)
def test_float64_and_int64_survive_the_way_in_and_out(x: list[float], idx: list[int]) -> None:
    fields = decode(SUM, _body(x=x, idx=idx, dtype="float64"))
    arrays = {name: array for name, array in fields.items() if isinstance(array, np.ndarray)}
    assert arrays["x"].dtype == np.float64
    assert arrays["idx"].dtype == np.int64
    assert json.loads(encode(arrays)) == {"x": x, "idx": idx}  # type: ignore[arg-type]


def test_float32_is_the_default_and_comes_out_exactly() -> None:
    x = decode(SUM, _body(x=[0.1]))["x"]
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float32
    assert json.loads(encode({"value": x})) == {"value": [float(np.float32(0.1))]}


@pytest.mark.parametrize("dtype", ["float16", "f4", "int32", None, 4, ["float32"]])
def test_another_dtype_is_refused_by_name(dtype: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(SUM, _body(x=[1.0], dtype=dtype))
    assert caught.value.field == "dtype"


def test_every_array_field_becomes_an_array() -> None:
    vector, matrix = [[1.0, 2.0, 3.0]], [[[1.0] * 3] * 3]
    fields = decode(
        MATVEC,
        _body(v=vector, m=matrix, idx=[0], cotangent=vector, tangents={"v": vector, "m": matrix}),
    )
    tangents = fields["tangents"]
    assert isinstance(tangents, dict)
    shapes = {name: getattr(array, "shape", None) for name, array in {**fields, **tangents}.items()}
    assert shapes == {
        "v": (1, 3),
        "m": (1, 3, 3),
        "idx": (1,),
        "cotangent": (1, 3),
        "tangents": None,
    }


@pytest.mark.parametrize(("x", "shape"), [([1.0], (0,)), ([[1.0, 2.0, 3.0]], (0, 3))])
def test_an_empty_cotangent_has_the_width_of_the_operand(x: Any, shape: tuple[int, ...]) -> None:
    cotangent = decode(SUM, _body(x=x, cotangent=[]))["cotangent"]
    assert isinstance(cotangent, np.ndarray)
    assert cotangent.shape == shape


@pytest.mark.parametrize("x", [[[[[1.0]]]], [[]], [[], []], [[[]]]])
def test_lists_of_other_depths_are_left_to_the_shape_check_or_refused(x: Any) -> None:
    try:
        array = decode(SUM, _body(x=x))["x"]
    except InvalidArgumentError as error:
        assert error.field == "x"  # noqa: PT017 - either way is right, silence is not
    else:
        assert isinstance(array, np.ndarray)
        assert array.shape not in {(len(x),), (len(x), 3)}


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_json_cannot_say_is_refused_with_its_path(number: float) -> None:
    with pytest.raises(NotJsonRepresentableError) as caught:
        encode({"value": np.zeros(1), "vjp": {"x": np.array([1.0, number])}})
    assert caught.value.field == "vjp.x"
