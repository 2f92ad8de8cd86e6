"""What derivative calls send, and in which form they return what they get."""

import numpy as np
import pytest

import segops
from segops_client import ArgumentTypeError, ArgumentValueError, Client
from tests.client.helpers import Script, packed

X = np.arange(12, dtype="f4").reshape(4, 3)
Y = np.arange(2, dtype="f4")
IDX = np.array([0, 0, 1, 1])
G = np.full((4, 3), 2, "f4")
BY_NAME = {"x": X, "y": Y}


@pytest.fixture
def script():
    return Script([packed({"value": G, "vjp": BY_NAME})])


@pytest.fixture
def client(script, play):
    with Client(play(script)) as client:
        yield client


def test_value_and_vjp_returns_the_value_and_a_map(client, script):
    value, vjp = client.value_and_vjp("segmented_mul", X, Y, IDX, 2)
    np.testing.assert_array_equal(value, G)
    np.testing.assert_array_equal(vjp["x"], X)
    np.testing.assert_array_equal(vjp["y"], Y)
    assert script.fields["want"] == ["value", "vjp"]
    assert not {"cotangent", "tangents"} & script.fields.keys()


def test_a_cotangent_is_sent_in_the_dtype_of_the_operands(client, script):
    x, y = X.astype("f8"), Y.astype("f8")
    client.value_and_vjp("segmented_mul", x, y, IDX, 2, cotangent=G.tolist())
    assert script.fields["cotangent"].dtype == np.float64
    np.testing.assert_array_equal(script.fields["cotangent"], G)


def test_jvp_sends_tangents_by_name_and_returns_an_array(client, script):
    script.answers = [packed({"jvp": G})]
    result = client.jvp("segmented_mul", X, Y, IDX, 2, tangents={"y": [1, 0]})
    np.testing.assert_array_equal(result, G)
    assert script.fields["want"] == ["jvp"]
    assert script.fields["tangents"].keys() == {"y"}
    assert script.fields["tangents"]["y"].dtype == np.float32


def test_hvp_sends_tangents_and_cotangent_and_returns_a_map(client, script):
    script.answers = [packed({"hvp": BY_NAME})]
    result = client.hvp(
        "segmented_mul", X, Y, IDX, 2, tangents={"x": X}, cotangent=G, indices_are_sorted=True
    )
    assert result.keys() == {"x", "y"}
    assert script.fields["want"] == ["hvp"]
    assert script.fields["indices_are_sorted"] is True
    np.testing.assert_array_equal(script.fields["tangents"]["x"], X)
    np.testing.assert_array_equal(script.fields["cotangent"], G)


@pytest.mark.parametrize(
    "op",
    ["segmented_mul", segops.segmented_mul, Client.segmented_mul],
    ids=["name", "function", "method"],
)
def test_an_operation_may_be_named_or_passed(client, script, op):
    client.value_and_vjp(op, X, Y, IDX, 2)
    assert script.received[0].path == "/v1/segmented_mul"


def test_a_bound_method_may_be_passed(client, script):
    client.value_and_vjp(client.segmented_mul, X, Y, IDX, num_segments=2)
    assert script.received[0].path == "/v1/segmented_mul"


@pytest.mark.parametrize("op", ["segment_sum", "jvp", "", len, 3, None], ids=repr)
def test_an_operation_that_does_not_exist_is_refused_with_those_that_do(client, script, op):
    with pytest.raises(ArgumentValueError, match="segmented_sum, segmented_mean"):
        client.value_and_vjp(op, X, IDX, 2)
    assert script.received == []


@pytest.mark.parametrize("arguments", [(), (X,), (X, IDX), (X, Y, IDX, 2, 3)])
def test_arguments_that_do_not_fit_the_operation_are_a_type_error(client, script, arguments):
    with pytest.raises(TypeError):
        client.value_and_vjp("segmented_mul", *arguments)
    assert script.received == []


def test_tangents_that_are_no_map_are_refused(client, script):
    with pytest.raises(ArgumentTypeError, match="tangents"):
        client.jvp("segmented_sum", X, IDX, 2, tangents=X)
    assert script.received == []
