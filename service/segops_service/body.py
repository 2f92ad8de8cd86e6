"""Bodies: which encoding a request and its answer have, and the way to and from bytes."""

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from starlette.datastructures import Headers
from starlette.requests import Request

from segops_client import wire
from segops_service import json_arrays
from segops_service.calls import Answer
from segops_service.errors import (
    BodyTooLargeError,
    InvalidArgumentError,
    MalformedBodyError,
    NotAcceptableError,
    NotJsonRepresentableError,
    UnsupportedMediaTypeError,
)
from segops_service.operations import Operation
from segops_service.settings import Settings

JSON_TYPE = "application/json"


class Encoding(Enum):
    """The two encodings; the value is the media type that is written."""

    MSGPACK = wire.MEDIA_TYPE
    JSON = JSON_TYPE


_ENCODINGS: Mapping[str, Encoding] = {
    JSON_TYPE: Encoding.JSON,
    **dict.fromkeys(wire.MEDIA_TYPES, Encoding.MSGPACK),
}
_KNOWN = ", ".join(_ENCODINGS)


def sent_encoding(headers: Headers) -> Encoding:
    """Read the encoding of the request's body off its headers."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaTypeError(
            f"content encoding {coding!r} is not read here; send it plain"
        )
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _ENCODINGS:
        raise UnsupportedMediaTypeError(f"content type must be one of {_KNOWN}, not {media_type!r}")
    return _ENCODINGS[media_type]


def answer_encoding(headers: Headers, sent: Encoding) -> Encoding:
    """Choose the encoding of the answer: the request's, unless ``Accept`` prefers the other."""
    accepted = _accepted(", ".join(headers.getlist("accept")) or "*/*")
    best = max(Encoding, key=lambda encoding: (_quality(accepted, encoding), encoding is sent))
    if _quality(accepted, best) == 0:
        raise NotAcceptableError(f"the answer can be one of {_KNOWN}")
    return best


async def read(request: Request) -> bytearray:
    """Read the whole body, which the limits middleware bounds.

    One buffer that grows: tiny chunks cost no more than their bytes, large ones no second copy.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
    return body


def decode(
    body: bytearray, encoding: Encoding, operation: Operation, settings: Settings
) -> Mapping[str, object]:
    """Fields of a body, with its arrays as NumPy arrays.

    Parameters
    ----------
    body
        The body as :func:`read` gave it, which nobody changes any more.
    encoding
        How it is encoded.
    operation
        The operation it is for: in JSON an array is known by its field.
    settings
        The limits to keep.

    Returns
    -------
    Mapping
        Values by field. Arrays of a msgpack body are read-only views of it.

    Raises
    ------
    MalformedBodyError
        If it is no map in this encoding.
    segops_client.wire.WireError
        If the msgpack is not what the wire format allows.
    InvalidArgumentError
        If a JSON list is no array of the kind that its field takes.
    BodyTooLargeError
        If a JSON body is over its own limit.
    """
    if encoding is Encoding.JSON:
        if len(body) > settings.max_json_bytes:
            raise BodyTooLargeError(
                f"a JSON body may have {settings.max_json_bytes} bytes; send msgpack instead"
            )
        return json_arrays.decode(operation, body)
    return _unpack(body, settings)


def encode(answer: Answer, encoding: Encoding, settings: Settings) -> bytes:
    """Bytes of an answer in the encoding that was chosen for it.

    Raises
    ------
    NotJsonRepresentableError
        If JSON cannot hold it, or should not for its size.
    """
    if encoding is Encoding.MSGPACK:
        return wire.packb(answer)
    if size(answer) > settings.max_json_bytes:
        raise NotJsonRepresentableError(
            f"arrays of an answer in JSON may have {settings.max_json_bytes} bytes; "
            "ask for msgpack with the Accept header"
        )
    return json_arrays.encode(answer)


def size(answer: Answer) -> int:
    """Bytes of all arrays of an answer."""
    return sum(array.nbytes for _, array in json_arrays.arrays(answer))


def _unpack(body: bytearray, settings: Settings) -> Mapping[str, object]:
    limits = wire.Limits(max_bytes=settings.max_body_bytes, max_depth=8, max_items=1024)
    try:
        fields = wire.unpackb(body, limits=limits)
    except wire.WireError as error:
        array, _, part = error.field.rpartition(".")
        if array and part == "type":  # sound msgpack of an array that no operation takes
            raise InvalidArgumentError(str(error), field=array) from error
        raise
    if not isinstance(fields, dict):
        raise MalformedBodyError("the body must be a map")
    return fields


def _accepted(header: str) -> dict[str, float]:
    """Quality by media range of an ``Accept`` header; what cannot be read is left out."""
    qualities: dict[str, float] = {}
    for entry in header.split(","):
        media_range, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = next((item[2:] for item in parameters if item.startswith("q=")), "1")
        with suppress(ValueError):
            qualities[media_range] = float(quality)
    return qualities


def _quality(accepted: Mapping[str, float], encoding: Encoding) -> float:
    """Quality of an encoding: by its own names first, then by the widening wildcards."""
    names = [name for name, known in _ENCODINGS.items() if known is encoding]
    exact = [accepted[name] for name in names if name in accepted]
    return max(exact) if exact else accepted.get("application/*", accepted.get("*/*", 0.0))
