"""The client on the service itself gives what the library gives, bit for bit."""

import math

import jax
import numpy as np
import pytest

import segops
from segops_client import Client, InvalidArgument
from tests.client.helpers import service

RNG = np.random.default_rng(7)
N, S = 200, 9
IDX = RNG.integers(-1, S + 1, N)  # a few out of range on both sides


def rows(*shape):
    return RNG.standard_normal(shape).astype("f4")


ARGUMENTS = {
    "segmented_sum": {"x": rows(N, 3)},
    "segmented_mean": {"x": rows(N)},
    "segmented_dot": {"x": rows(N, 3), "y": rows(N, 3)},
    "segmented_rms_norm": {"x": rows(N, 3)},
    "segmented_mul": {"x": rows(N, 3), "y": rows(S)},
    "segmented_matvec": {"v": rows(N, 3), "m": rows(S, 3, 3)},
}
each_operation = pytest.mark.parametrize("op", ARGUMENTS)


@pytest.fixture(scope="module")
def client():
    with service() as url, Client(url) as client:
        yield client


def call(op):
    return (*ARGUMENTS[op].values(), IDX, S)


def tangents(op):
    return {name: array[::-1] for name, array in ARGUMENTS[op].items()}


def cotangent(op):
    shape = getattr(segops, op)(*call(op)).shape
    return np.linspace(-1, 1, math.prod(shape), dtype="f4").reshape(shape)


def assert_same(received, expected):
    received, expected = (jax.tree.map(np.asarray, tree) for tree in (received, expected))
    if isinstance(expected, dict):
        assert list(received) == list(expected)
    for ours, theirs in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@each_operation
def test_values_are_those_of_the_library(client, op):
    assert_same(getattr(client, op)(*call(op)), getattr(segops, op)(*call(op)))


@each_operation
def test_vjps_are_those_of_the_library(client, op):
    arguments = {"cotangent": cotangent(op)}
    value, vjp = client.value_and_vjp(op, *call(op), **arguments)
    expected_value, expected_vjp = segops.value_and_vjp(op, *call(op), **arguments)
    assert_same(value, expected_value)
    assert_same(vjp, expected_vjp)


@each_operation
def test_jvps_are_those_of_the_library(client, op):
    arguments = {"tangents": tangents(op)}
    assert_same(client.jvp(op, *call(op), **arguments), segops.jvp(op, *call(op), **arguments))


@each_operation
def test_hvps_are_those_of_the_library(client, op):
    arguments = {"tangents": tangents(op), "cotangent": cotangent(op)}
    assert_same(client.hvp(op, *call(op), **arguments), segops.hvp(op, *call(op), **arguments))


def test_float64_stays_float64(client):
    x = ARGUMENTS["segmented_sum"]["x"].astype("f8") + 1e-12
    result = client.segmented_sum(x, IDX, S)
    assert result.dtype == np.float64
    expected = np.stack([x[s == IDX].sum(0) for s in range(S)])
    np.testing.assert_allclose(result, expected, rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3), (0,)])
@pytest.mark.parametrize("segments", [0, 4])
def test_no_rows_give_zeros_of_the_right_shape(client, shape, segments):
    result = client.segmented_sum(np.zeros(shape, "f4"), [], segments)
    np.testing.assert_array_equal(result, np.zeros((segments, *shape[1:]), "f4"))


def test_an_invalid_argument_is_named_by_the_service(client):
    with pytest.raises(InvalidArgument) as caught:
        client.segmented_sum(np.zeros((2, 4), "f4"), [0, 0], 1)
    assert caught.value.field == "x"
    assert caught.value.status == 422
    with pytest.raises(ValueError, match="num_segments"):
        client.segmented_sum(np.zeros(2, "f4"), [0, 0], -1)


def test_ids_out_of_range_are_refused_where_asked(client):
    with Client(str(client._url), out_of_range="error") as strict:
        with pytest.raises(InvalidArgument) as caught:
            strict.segmented_sum(np.zeros(3, "f4"), [0, 1, 2], 2)
        assert caught.value.field == "idx"
        assert caught.value.position == 2


def test_a_large_array_makes_the_round_trip(client):
    x = np.arange(2**21, dtype="f4")
    np.testing.assert_array_equal(
        client.segmented_sum(x, np.arange(2**21), 2**21, indices_are_sorted=True), x
    )


def test_health_and_metadata_come_from_the_service(client):
    assert client.health().ready
    assert {"versions", "limits"} <= client.metadata().keys()
