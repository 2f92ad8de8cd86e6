"""Bodies: their two encodings, and the way from bytes and to bytes."""

from collections.abc import Mapping
from enum import Enum
from functools import cache

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from segops_client import wire
from segops_service import json_arrays
from segops_service.admission import Slot
from segops_service.calls import Answer
from segops_service.errors import (
    BodyTooLargeError,
    InvalidArgumentError,
    MalformedBodyError,
    NotJsonRepresentableError,
)
from segops_service.operations import Operation
from segops_service.settings import Settings

Buffer = bytes | bytearray | memoryview
Part = bytes | memoryview

JSON_TYPE = "application/json"


class Encoding(Enum):
    """The two encodings; the value is the media type that is written."""

    MSGPACK = wire.MEDIA_TYPE
    JSON = JSON_TYPE


ENCODINGS: Mapping[str, Encoding] = {
    JSON_TYPE: Encoding.JSON,
    **dict.fromkeys(wire.MEDIA_TYPES, Encoding.MSGPACK),
}


async def read(receive: Receive, slot: Slot) -> Buffer:
    """Read the whole body, which the limits middleware bounds.

    A server that hands it over at once spares a copy. Otherwise it is one buffer that grows: tiny
    chunks cost no more than their bytes.

    Raises
    ------
    ClientDisconnect
        If the client hangs up before its end.
    OverloadedError
        If its length was not declared and there is no room for it.
    """
    content, more = await _chunk(receive)
    slot.charge(len(content))
    if not more:
        return content
    body = bytearray(content)
    while more:
        chunk, more = await _chunk(receive)
        slot.charge(len(body) + len(chunk))
        body += chunk
    return body


async def _chunk(receive: Receive) -> tuple[Buffer, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def decode(
    body: Buffer, encoding: Encoding, operation: Operation, settings: Settings
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


def encode(answer: Answer, encoding: Encoding, settings: Settings) -> list[Part]:
    """Bytes of an answer, in parts, in the encoding that was chosen for it.

    Large arrays of a msgpack answer are parts of their own, which nobody copies.

    Raises
    ------
    NotJsonRepresentableError
        If JSON cannot hold it, or should not for its size.
    """
    if encoding is Encoding.MSGPACK:
        return wire.pack_parts(answer)
    if size(answer) > settings.max_json_bytes:
        raise NotJsonRepresentableError(
            f"arrays of an answer in JSON may have {settings.max_json_bytes} bytes; "
            "ask for msgpack with the Accept header"
        )
    return [json_arrays.encode(answer)]


def size(answer: Answer) -> int:
    """Bytes of all arrays of an answer."""
    return sum(array.nbytes for _, array in json_arrays.arrays(answer))


@cache
def _limits(max_bytes: int) -> wire.Limits:
    return wire.Limits(max_bytes=max_bytes, max_depth=8, max_items=1024)


def _unpack(body: Buffer, settings: Settings) -> Mapping[str, object]:
    try:
        fields = wire.unpackb(body, limits=_limits(settings.max_body_bytes))
    except wire.WireError as error:
        array, _, part = error.field.rpartition(".")
        if array and part == "type":  # sound msgpack of an array that no operation takes
            raise InvalidArgumentError(str(error), field=array) from error
        raise
    if not isinstance(fields, dict):
        raise MalformedBodyError("the body must be a map")
    return fields
