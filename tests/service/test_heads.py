"""What the headers of a request mean: encodings, length and time."""

import pytest

from segops_client import wire
from segops_service import heads
from segops_service.body import Encoding
from segops_service.errors import (
    InvalidArgumentError,
    NotAcceptableError,
    UnsupportedMediaTypeError,
)
from tests.service.asgi import scope

VND = wire.MEDIA_TYPE
JSON = ("content-type", "application/json")


def head(*headers: tuple[str, str]) -> heads.Head:
    return heads.read(scope(headers=[(name.encode(), value.encode()) for name, value in headers]))


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("application/json", Encoding.JSON),
        ("Application/JSON; charset=utf-8", Encoding.JSON),
        *[(name, Encoding.MSGPACK) for name in wire.MEDIA_TYPES],
    ],
)
def test_content_types_that_are_read(content_type: str, encoding: Encoding) -> None:
    assert head(("content-type", content_type)).sent is encoding


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("content-type", "application/octet-stream")],
        [JSON, ("content-encoding", "gzip")],
        [JSON, ("content-encoding", "identity, br")],
    ],
)
def test_content_types_and_codings_that_are_not_read(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(UnsupportedMediaTypeError):
        head(*headers)


def test_a_plain_body_may_say_so() -> None:
    assert head(JSON, ("content-encoding", "Identity")).sent is Encoding.JSON


@pytest.mark.parametrize(
    ("accept", "sent", "answer"),
    [
        (None, Encoding.JSON, Encoding.JSON),
        (None, Encoding.MSGPACK, Encoding.MSGPACK),
        ("*/*", Encoding.MSGPACK, Encoding.MSGPACK),
        ("application/*", Encoding.JSON, Encoding.JSON),
        ("application/json", Encoding.MSGPACK, Encoding.JSON),
        ("application/x-msgpack", Encoding.JSON, Encoding.MSGPACK),
        (f"application/json, {VND}", Encoding.MSGPACK, Encoding.MSGPACK),
        (f"application/json;q=0.9, {VND};q=0.1", Encoding.MSGPACK, Encoding.JSON),
        ("application/json;q=0, */*", Encoding.JSON, Encoding.MSGPACK),
        ("text/html, application/xhtml+xml, */*;q=0.8", Encoding.JSON, Encoding.JSON),
        ("application/json;q=nonsense, */*;q=0.1", Encoding.JSON, Encoding.JSON),
    ],
)
def test_the_answer_is_what_the_caller_prefers(
    accept: str | None, sent: Encoding, answer: Encoding
) -> None:
    headers = [] if accept is None else [("accept", accept)]
    assert head(("content-type", sent.value), *headers).wanted is answer


def test_accept_headers_add_up() -> None:
    several = [("accept", "text/html"), ("accept", VND), ("accept", "application/json;q=0.1")]
    assert head(JSON, *several).wanted is Encoding.MSGPACK


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
def test_an_answer_that_cannot_be_written_is_not_promised(accept: str) -> None:
    with pytest.raises(NotAcceptableError):
        head(JSON, ("accept", accept))


def test_a_length_that_is_declared_is_known_beforehand() -> None:
    assert head(JSON, ("content-length", "123")).length == 123
    assert head(JSON).length == 0


def test_the_time_limit_is_read_in_seconds() -> None:
    assert head(JSON).seconds is None
    for text, seconds in (("2", 2.0), ("0.25", 0.25), ("1e-3", 0.001)):
        assert head(JSON, ("x-request-timeout", text)).seconds == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1_000", "soon", "1,5", "0x10"])
def test_a_time_limit_that_is_no_positive_number_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="X-Request-Timeout") as caught:
        head(JSON, ("x-request-timeout", text))
    assert caught.value.field == "X-Request-Timeout"


def test_no_more_of_an_accept_header_is_read_than_any_client_needs() -> None:
    assert head(JSON, ("accept", "text/html," * 100 + VND)).wanted is Encoding.MSGPACK
    with pytest.raises(NotAcceptableError):
        head(JSON, ("accept", "text/html," * 6000 + VND))
