"""What a call puts on the wire, as a peer sees it that shares no code with the client."""

import re

import httpx
import jax.numpy as jnp
import numpy as np
import pytest

import segops_client
from segops_client import ArgumentTypeError, ArgumentValueError, Client
from segops_client._base import call_headers
from tests.client.helpers import MSGPACK, Script, packed

X = np.arange(12, dtype="f4").reshape(4, 3)
Y = np.arange(2, dtype="f4")
IDX = np.array([0, 0, 1, 1])
VALUE = np.zeros(2, "f4")


@pytest.fixture
def script():
    return Script([packed({"value": VALUE})])


@pytest.fixture
def client(script, play):
    with Client(play(script)) as client:
        yield client


@pytest.mark.parametrize(
    ("op", "names", "operands"),
    [
        ("segmented_sum", ("x",), (X,)),
        ("segmented_mean", ("x",), (X,)),
        ("segmented_rms_norm", ("x",), (X,)),
        ("segmented_dot", ("x", "y"), (X, X + 1)),
        ("segmented_mul", ("x", "y"), (X, Y)),
        ("segmented_matvec", ("v", "m"), (X, np.ones((2, 3, 3), "f4"))),
    ],
)
def test_each_operation_sends_its_operands_by_name(client, script, op, names, operands):
    getattr(client, op)(*operands, IDX, 2)
    assert script.received[0].method == "POST"
    assert script.received[0].path == f"/v1/{op}"
    fields = script.fields
    for name, operand in zip(names, operands, strict=True):
        np.testing.assert_array_equal(fields.pop(name), operand)
    np.testing.assert_array_equal(fields.pop("idx"), IDX)
    assert fields == {
        "num_segments": 2,
        "indices_are_sorted": False,
        "out_of_range": "drop",
        "want": ["value"],
    }


def test_options_are_sent(client, script):
    client.segmented_sum(X, IDX, num_segments=np.int64(2), indices_are_sorted=np.True_)
    assert script.fields["indices_are_sorted"] is True
    assert script.fields["num_segments"] == 2


def test_a_client_can_ask_for_errors_on_ids_out_of_range(script, play):
    with Client(play(script), out_of_range="error") as client:
        client.segmented_sum(X, IDX, 2)
    assert script.fields["out_of_range"] == "error"


def test_headers_name_the_encoding_the_caller_and_the_token(script, play):
    with Client(play(script), token="secret") as client:
        client.segmented_sum(X, IDX, 2)
        assert "secret" not in repr(client)
    headers = script.received[0].headers
    assert headers["content-type"] == headers["accept"] == MSGPACK
    assert headers["authorization"] == "Bearer secret"
    assert headers["user-agent"] == f"segops-client/{segops_client.__version__}"
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "120"),
        ({"timeout": 7}, "7"),
        ({"timeout": httpx.Timeout(9, read=2.5)}, "2.5"),
        ({"timeout": httpx.Timeout(9, read=None)}, None),
        ({"timeout": None}, None),
    ],
)
def test_the_service_is_told_how_long_the_answer_is_waited_for(script, play, options, told):
    with Client(play(script), **options) as client:
        client.segmented_sum(X, IDX, 2)
    assert script.received[0].headers.get("x-request-timeout") == told


@pytest.mark.parametrize("seconds", [1e-7, 0.1, 1 / 3, 1e20])
def test_a_time_is_told_in_plain_decimals(seconds):
    told = call_headers(httpx.Timeout(seconds))["x-request-timeout"]
    assert re.fullmatch(r"\d+(\.\d+)?", told)
    assert float(told) == seconds


def test_a_path_in_the_address_is_a_prefix_of_the_routes(script, play):
    with Client(play(script) + "/behind/proxy/") as client:
        client.segmented_sum(X, IDX, 2)
    assert script.received[0].path == "/behind/proxy/v1/segmented_sum"


def test_connections_are_kept_between_calls(script, play):
    peers = set()

    async def watched(scope, receive, send):
        peers.add(scope["client"])
        await script(scope, receive, send)

    with Client(play(watched)) as client:
        for _ in range(3):
            client.segmented_sum(X, IDX, 2)
    assert len(peers) == 1


class OnlyArray:
    def __array__(self, dtype=None, copy=None):
        return X


class OnlyDLPack:
    def __dlpack__(self, **options):
        return X.__dlpack__(**options)

    def __dlpack_device__(self):
        return X.__dlpack_device__()


@pytest.mark.parametrize(
    "x",
    [
        X,
        X.astype("f8"),
        X.astype(">f4"),
        X.astype(">f8"),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2],
        jnp.asarray(X),
        OnlyArray(),
        OnlyDLPack(),
        X.tolist(),
        X.astype(int).tolist(),
        tuple(map(tuple, X.tolist())),
        list(X),
        list(jnp.asarray(X)),
    ],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
def test_anything_that_is_an_array_arrives_as_one(client, script, x):
    client.segmented_sum(x, IDX, 2)
    received = script.fields["x"]
    np.testing.assert_array_equal(received, X)
    wide = isinstance(x, np.ndarray) and x.dtype.itemsize == 8
    assert received.dtype == (np.float64 if wide else np.float32)


@pytest.mark.parametrize(
    "idx",
    [
        [0, 0, 1, 1],
        (0, 0, 1, 1),
        jnp.asarray(IDX),
        IDX.astype("u1"),
        IDX.astype(">i4"),
        IDX.astype("u8"),
        np.repeat(IDX, 3)[::3],
    ],
    ids=lambda idx: f"{type(idx).__name__}-{getattr(idx, 'dtype', '')}",
)
def test_ids_of_any_integer_type_arrive_unchanged(client, script, idx):
    client.segmented_sum(X, idx, 2)
    received = script.fields["idx"]
    np.testing.assert_array_equal(received, IDX)
    wanted = np.asarray(idx).dtype.newbyteorder("<") if hasattr(idx, "dtype") else np.int64
    assert received.dtype == wanted


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_and_lists_take_the_dtype_of_the_arrays_beside_them(client, script, dtype):
    client.segmented_mul(X.astype(dtype), [0.1, 1], IDX, 2)
    assert script.fields["y"].dtype == np.dtype(dtype)
    assert script.fields["y"][0] == np.array(0.1, dtype)


def test_a_number_arrives_as_an_array_without_dimensions(client, script):
    client.segmented_sum(2.5, IDX, 2)
    assert script.fields["x"].shape == ()
    assert script.fields["x"] == np.float32(2.5)


def test_empty_lists_are_rows_and_ids(client, script):
    client.segmented_sum([], [], 0)
    assert script.fields["x"].dtype == np.float32
    assert script.fields["idx"].dtype == np.int64


def test_values_that_json_lacks_arrive_bit_for_bit(client, script):
    special = np.array([np.nan, np.inf, -np.inf, -0.0], "f4")
    client.segmented_sum(special, IDX, 2)
    assert script.fields["x"].tobytes() == special.tobytes()


WIDE = jnp.zeros((4, 3), "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "name", "error"),
    [
        ((X.astype("f2"), IDX, 2), "x", ArgumentTypeError),
        ((X.astype("i4"), IDX, 2), "x", ArgumentTypeError),
        ((X.astype("c8"), IDX, 2), "x", ArgumentTypeError),
        ((X.astype(object), IDX, 2), "x", ArgumentTypeError),
        ((WIDE, IDX, 2), "x", ArgumentTypeError),
        ((np.ma.masked_array(X), IDX, 2), "x", ArgumentTypeError),
        (([1.0, None], IDX, 2), "x", ArgumentTypeError),
        (([True, False], IDX, 2), "x", ArgumentTypeError),
        (("text", IDX, 2), "x", ArgumentTypeError),
        ((None, IDX, 2), "x", ArgumentTypeError),
        (([1j], IDX, 2), "x", ArgumentTypeError),
        (([[1.0], [1.0, 2.0]], IDX, 2), "x", ArgumentValueError),
        ((np.broadcast_to(np.float32(1), 2**30), IDX, 2), "x", ArgumentValueError),
        ((X, [0.0, 1.0], 2), "idx", ArgumentTypeError),
        ((X, [True, False], 2), "idx", ArgumentTypeError),
        ((X, [2**70], 2), "idx", ArgumentTypeError),
        ((X, np.zeros(0), 2), "idx", ArgumentTypeError),
        ((X, IDX, 2.0), "num_segments", ArgumentTypeError),
        ((X, IDX, True), "num_segments", ArgumentTypeError),
        ((X, IDX, np.True_), "num_segments", ArgumentTypeError),
        ((X, IDX, "2"), "num_segments", ArgumentTypeError),
        ((X, IDX, None), "num_segments", ArgumentTypeError),
        ((X, IDX, 2**64), "num_segments", ArgumentValueError),
    ],
    ids=repr,
)
def test_what_cannot_be_meant_is_refused_by_name_and_not_sent(
    client, script, arguments, name, error
):
    with pytest.raises(error, match=f"^`{name}`") as caught:
        client.segmented_sum(*arguments)
    assert caught.value.argument == name
    assert script.received == []


def test_operands_of_two_dtypes_are_refused(client, script):
    with pytest.raises(ArgumentTypeError, match="`y` is float64 but `x` is float32"):
        client.segmented_dot(X, X.astype("f8"), IDX, 2)
    with pytest.raises(ArgumentTypeError, match=r"`tangents\.x` is float64"):
        client.jvp("segmented_sum", X, IDX, 2, tangents={"x": X.astype("f8")})
    assert script.received == []


def test_an_array_that_its_library_will_not_give_is_refused_with_its_reason(client):
    class OnDevice:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("call .detach() first")

    with pytest.raises(ArgumentTypeError, match="detach"):
        client.segmented_sum(OnDevice(), IDX, 2)


def test_an_option_that_does_not_exist_is_refused(client, script):
    with pytest.raises(TypeError, match="sorted"):
        client.segmented_sum(X, IDX, 2, sorted=True)
    with pytest.raises(TypeError, match="sorted"):
        client.jvp("segmented_sum", X, IDX, 2, tangents={}, sorted=True)
    with pytest.raises(ArgumentTypeError, match="indices_are_sorted"):
        client.segmented_sum(X, IDX, 2, indices_are_sorted=1)
    assert script.received == []


@pytest.mark.parametrize("url", ["localhost:8000", "127.0.0.1:80", "", "ftp://host", "http://"])
def test_an_address_without_scheme_or_host_is_refused_with_an_example(url):
    with pytest.raises(ArgumentValueError, match="'http://host:port'"):
        Client(url)


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(ArgumentValueError, match="out_of_range"):
        Client("http://localhost", out_of_range="ignore")


def test_the_representation_reads_back():
    url = "http://localhost:8000"
    assert repr(Client(url)) == f"Client({url!r})"
