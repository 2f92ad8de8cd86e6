"""Results belong to the caller; every other answer is an error of the right type."""

import pickle

import numpy as np
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

import segops_client
from segops_client import Client, Health, InvalidAnswer, ServiceError
from tests.client.helpers import MSGPACK, Script, packed, problem

X = np.ones(2, "f4")
IDX = np.array([0, 1])


@pytest.fixture
def ask(play):
    """Return a function that makes a call and has it answered."""

    def ask(answer, call=lambda client: client.segmented_sum(X, IDX, 2)):
        with Client(play(Script([answer])), retries=0) as client:
            return call(client)

    return ask


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_result_is_writable_aligned_and_alone(ask, dtype):
    value = np.arange(6, dtype=dtype).reshape(2, 3)
    result = ask(packed({"value": value}))
    assert result.dtype == value.dtype
    assert result.flags.writeable
    assert result.flags.aligned
    assert result.base is None
    result[0] = 7
    np.testing.assert_array_equal(result[1], value[1])


@pytest.mark.parametrize(
    ("status", "slug", "name"),
    [
        (422, "invalid-argument", "InvalidArgument"),
        (422, "array-too-large", "ArrayTooLarge"),
        (422, "not-json-representable", "NotJsonRepresentable"),
        (400, "malformed-body", "MalformedBody"),
        (401, "unauthorized", "Unauthorized"),
        (404, "unknown-op", "UnknownOp"),
        (404, "not-found", "NotFound"),
        (405, "method-not-allowed", "MethodNotAllowed"),
        (406, "not-acceptable", "NotAcceptable"),
        (408, "request-timeout", "RequestTooSlow"),
        (413, "body-too-large", "BodyTooLarge"),
        (415, "unsupported-media-type", "UnsupportedMediaType"),
        (429, "overloaded", "Overloaded"),
        (500, "internal", "InternalError"),
        (503, "not-ready", "NotReady"),
        (503, "deadline-exceeded", "DeadlineExceeded"),
        (507, "out-of-memory", "OutOfMemory"),
        (418, "of-a-later-version", "ServiceError"),
        (429, "of-a-later-version", "Overloaded"),
    ],
)
def test_a_problem_raises_the_error_of_its_type(ask, status, slug, name):
    with pytest.raises(ServiceError) as caught:
        ask(problem(status, slug))
    assert type(caught.value) is getattr(segops_client, name)
    assert caught.value.status == status
    assert caught.value.type == f"urn:segops:problem:{slug}"


def test_an_invalid_argument_is_a_value_error_that_names_field_and_position(ask):
    answer = problem(
        422, "invalid-argument", detail="is 5, outside [0, 2)", field="idx", position=3
    )
    with pytest.raises(ValueError, match=r"`idx`: is 5, outside") as caught:
        ask(answer)
    assert caught.value.field == "idx"
    assert caught.value.position == 3


@pytest.mark.parametrize("slug", ["invalid-argument", "deadline-exceeded"])
def test_an_error_survives_pickling_between_processes(ask, slug):
    with pytest.raises(ServiceError) as caught:
        ask(problem(422, slug, field="x"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert (str(copy), copy.field) == (str(caught.value), "x")


def test_time_that_passed_in_the_service_is_a_timeout_that_says_so(ask):
    with pytest.raises(TimeoutError, match="no answer within 2 s") as caught:
        ask(problem(503, "deadline-exceeded", detail="there was no answer within 2 s"))
    assert caught.value.status == 503


def test_an_error_names_the_request_as_the_log_of_the_service_does(ask):
    with pytest.raises(ServiceError) as caught:
        ask(problem(500, "internal", headers={"x-request-id": "a1"}))
    assert caught.value.request_id == "a1"


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (401, "Unauthorized"),
        (404, "NotFound"),
        (408, "RequestTooSlow"),
        (413, "BodyTooLarge"),
        (502, "ServiceError"),
        (503, "NotReady"),
    ],
)
def test_an_error_of_a_proxy_raises_by_its_status_and_shows_its_text(ask, status, name):
    with pytest.raises(ServiceError, match="from nginx") as caught:
        ask(PlainTextResponse("from nginx", status))
    assert type(caught.value) is getattr(segops_client, name)
    assert caught.value.type == "about:blank"


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{", b'{"type": 3}', b"\xff", b"[" * 100_000, b'{"status": 1e999}']
)
def test_a_broken_problem_document_is_still_a_service_error(ask, document):
    with pytest.raises(ServiceError) as caught:
        ask(Response(document, 500, media_type="application/problem+json"))
    assert caught.value.status == 500


def test_retry_after_of_an_error_is_told(ask):
    with pytest.raises(ServiceError) as caught:
        ask(problem(503, "not-ready", headers={"retry-after": "7"}))
    assert caught.value.retry_after == 7


def test_a_redirect_is_not_followed_in_silence(ask):
    with pytest.raises(ServiceError) as caught:
        ask(RedirectResponse("http://elsewhere.invalid/"))
    assert caught.value.status == 307


GOOD = packed({"value": X}).body


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("welcome"),
        JSONResponse({"value": [1, 2]}),
        Response(GOOD),
        Response(b"", media_type=MSGPACK),
        Response(GOOD[:-1], media_type=MSGPACK),
        packed([1]),
        packed({}),
        packed({"jvp": X}),
        packed({"value": X, "more": X}),
        packed({"value": [1.0, 2.0]}),
        packed({"value": None}),
        packed({"value": {"x": 1}}),
    ],
    ids=lambda answer: repr(answer.body[:20]),
)
def test_a_success_that_holds_no_answer_is_an_invalid_answer(ask, answer):
    with pytest.raises(InvalidAnswer):
        ask(answer)


def test_health_tells_readiness_and_why_not(ask):
    assert ask(JSONResponse({"status": "ready"}), Client.health) == Health(ready=True)
    starting = problem(503, "not-ready", detail="warming up")
    assert ask(starting, Client.health) == Health(ready=False, detail="warming up")


def test_health_of_something_else_raises(ask):
    with pytest.raises(ServiceError):
        ask(PlainTextResponse("no", 404), Client.health)


def test_metadata_is_the_map_that_was_sent(ask):
    assert ask(JSONResponse({"version": "1"}), Client.metadata) == {"version": "1"}
    for answer in (JSONResponse([1]), PlainTextResponse("welcome")):
        with pytest.raises(InvalidAnswer):
            ask(answer, Client.metadata)
