"""Which encoding a request has and which its answer gets."""

import pytest
from starlette.datastructures import Headers

from segops_client import wire
from segops_service.body import Encoding, answer_encoding, sent_encoding
from segops_service.errors import NotAcceptableError, UnsupportedMediaTypeError

VND = wire.MEDIA_TYPE


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("application/json", Encoding.JSON),
        ("Application/JSON; charset=utf-8", Encoding.JSON),
        *[(name, Encoding.MSGPACK) for name in wire.MEDIA_TYPES],
    ],
)
def test_content_types_that_are_read(content_type: str, encoding: Encoding) -> None:
    assert sent_encoding(Headers({"content-type": content_type})) is encoding


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/octet-stream"}])
def test_content_types_that_are_not_read(headers: dict[str, str]) -> None:
    with pytest.raises(UnsupportedMediaTypeError):
        sent_encoding(Headers(headers))


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
    headers = Headers({} if accept is None else {"accept": accept})
    assert answer_encoding(headers, sent) is answer


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*"])
def test_an_answer_that_cannot_be_written_is_not_promised(accept: str) -> None:
    with pytest.raises(NotAcceptableError):
        answer_encoding(Headers({"accept": accept}), Encoding.JSON)
