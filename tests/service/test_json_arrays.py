"""Nested lists to arrays and back."""

import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segops
from segops_service.errors import (
    InvalidArgumentError,
    MalformedBodyError,
    NotJsonRepresentableError,
)
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


@pytest.mark.parametrize(
    ("idx", "position"),
    [([0, 2**70], 1), ([0, 1, -(2**70), 2**70], 2), ([0, -1, 2**70], 1), ([2**63, 2**70], 0)],
)
def test_the_first_id_out_of_range_is_named_as_it_was_sent(idx: list[int], position: int) -> None:
    with pytest.raises(segops.SegmentIdError) as caught:
        decode(SUM, _body(x=[1.0], idx=idx, num_segments=2))
    assert caught.value.position == position
    assert f"`idx[{position}]` is {idx[position]}," in str(caught.value)


@pytest.mark.parametrize("other", [{"out_of_range": "drop"}, {"num_segments": "2"}])
def test_ids_beyond_int64_stay_out_of_range_where_they_are_dropped(other: dict[str, Any]) -> None:
    fields = decode(SUM, _body(**{"idx": [1, 2**70, -(2**70)], "num_segments": 2, **other}))
    idx = fields["idx"]
    assert isinstance(idx, np.ndarray)
    assert idx.dtype == np.int64
    assert idx.tolist() == [1, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("x", "[1e400]"),
        ("x", "[1e39]"),
        ("x", f"[1{'0' * 5000}]"),
        ("tangents.x", "[-1e400]"),
        ("num_segments", "1e400"),
        ("want", f'["value", 1{"0" * 5000}]'),
        ("idx", f"[1{'0' * 5000}]"),
    ],
)
def test_a_number_that_no_type_holds_is_refused_by_its_field(field: str, text: str) -> None:
    for name in reversed(field.split(".")):
        text = f'{{"{name}": {text}}}'
    with pytest.raises(InvalidArgumentError) as caught:
        decode(SUM, text.encode())
    assert caught.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"1e400",
        b"\xef\xbb\xbf{}",
        b'{"x": [1,]}',
        b'{"x": [1] ',
        b'{"x": NaN}',
        b'{"want": ["\xff"]}',
        b'{"\xff": 1}',
        b'{"tangents": {"\xff": [1]}}',
        b'{"dtype": "\\ud800"}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_object_is_a_malformed_body(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode(SUM, body)


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_long_lists_are_what_short_ones_are(space: str) -> None:
    rng = np.random.default_rng(0)
    v, m = rng.standard_normal((9000, 3)), rng.standard_normal((4000, 3, 3))
    idx = rng.integers(-(2**63), 2**63 - 1, 9000)
    fields = {"v": v.tolist(), "m": m.tolist(), "idx": idx.tolist(), "dtype": "float64"}
    text = json.dumps(fields).replace(",", f"{space},{space}").replace("]", f"{space}]{space}")
    decoded = decode(MATVEC, text.encode())
    for name, array in (("v", v), ("m", m), ("idx", idx)):
        np.testing.assert_array_equal(decoded[name], array)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "row", "reason"),
    [
        (0, [0, 0, None], "$[0][2]"),
        (4321, [0, 0, "1"], "$[4321][2]"),
        (-1, [0, 0, True], "$[8999][2]"),
        (4321, [0, 0, "]," * 9000], "more in them than numbers"),
        (4321, {"a": [1], "b": [2]}, "$[4321]"),
        (4321, [0, 0], "not all of one length"),
        (-1, [0, 0], "not all of one length"),
        (4321, [0, 0, [1]], "$[4321][2]"),
        (4321, [0, 0, 1e39], "too large"),
    ],
)
def test_what_is_wrong_in_a_long_list_is_told_by_its_place(
    place: int, row: Any, reason: str
) -> None:
    x: list[Any] = [[0, 0, 1]] * 9000
    x[place] = row
    with pytest.raises(InvalidArgumentError, match=re.escape(reason)) as caught:
        decode(SUM, _body(x=x))
    assert caught.value.field == "x"


def test_a_row_that_no_array_has_is_not_read() -> None:
    for field, value in (("x", [[1] * 100_000]), ("cotangent", [[[1] * 100_000]])):
        with pytest.raises(InvalidArgumentError, match="longer than any of use") as caught:
            decode(SUM, _body(**{field: value}))
        assert caught.value.field == field


@pytest.mark.parametrize("value", ["],[" * 9000, {"a": [0] * 9000}, [[[[0]]]] * 9000])
def test_what_is_long_and_no_list_of_numbers_is_refused(value: Any) -> None:
    for field in ("x", "idx", "cotangent"):
        with pytest.raises(InvalidArgumentError) as caught:
            decode(SUM, _body(**{field: value}))
        assert caught.value.field == field


def test_no_more_than_a_piece_is_held_in_lists_at_a_time() -> None:
    body = b'{"x": [' + b"[]," * 300_000 + b"[]]}"
    tracemalloc.start()
    try:
        decode(SUM, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)


def test_a_field_that_no_value_of_use_can_be_is_not_read() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(SUM, _body(want=[{}] * 100_000))
    assert caught.value.field == "want"
    assert decode(SUM, _body(unknown=[{}] * 100_000)) == {"unknown": None}


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1, 3), (9000,), (9000, 3), (4000, 3, 3)])
def test_an_answer_of_any_length_is_written_as_the_lists_it_is(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    assert json.loads(encode({"value": array, "vjp": {"x": array}})) == {
        "value": array.tolist(),
        "vjp": {"x": array.tolist()},
    }


@pytest.mark.parametrize("field", ["cotangent", "tangents"])
def test_null_is_left_out(field: str) -> None:
    assert decode(SUM, _body(**{field: None})) == {field: None}


@pytest.mark.parametrize("empty", ["[]", " [ ] ", "[\n]"])
def test_empty_is_empty_in_any_spacing(empty: str) -> None:
    x = decode(OPERATIONS["segmented_dot"], f'{{"x": {empty}}}'.encode())["x"]
    assert isinstance(x, np.ndarray)
    assert x.shape == (0, 3)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_json_cannot_say_is_refused_with_its_path(number: float) -> None:
    with pytest.raises(NotJsonRepresentableError) as caught:
        encode({"value": np.zeros(1), "vjp": {"x": np.array([1.0, number])}})
    assert caught.value.field == "vjp.x"
