"""What must hold of every input, whoever made it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from segops_client import wire
from segops_service import body, problems
from segops_service.body import Encoding
from segops_service.operations import OPERATIONS
from segops_service.settings import Settings
from segops_service.validation import validate
from tests.fuzz.seeds import to_json

SETTINGS = Settings()
EXPECTED = tuple(kind for kind in problems.PROBLEMS if kind is not MemoryError)

_SECONDS = 1.0
_SECONDS_A_BYTE = 1e-6


def check_wire(data: bytes) -> None:
    """Decode a message, or refuse it as a message; what was decoded survives another round."""
    with _in_time(data):
        try:
            value = wire.unpackb(data)
        except wire.WireError as error:
            _check_words(error)
            return
    packed = wire.packb(value)
    assert wire.packb(wire.unpackb(packed)) == packed


def check_msgpack(data: bytes) -> None:
    """Treat data as the msgpack body of a request for each operation."""
    for op in OPERATIONS:
        fields = _accepted(op, data, Encoding.MSGPACK)
        if fields is not None:
            packed = wire.packb(fields)
            again = _accepted(op, packed, Encoding.MSGPACK)
            assert again is not None
            assert wire.packb(again) == packed


def check_json(data: bytes) -> None:
    """Treat data as the JSON body of a request for each operation."""
    for op, operation in OPERATIONS.items():
        fields = _accepted(op, data, Encoding.JSON)
        if fields is not None:
            ordered = {name: fields[name] for name in operation.operands} | fields
            again = _accepted(op, to_json(ordered), Encoding.JSON)
            assert again is not None
            assert wire.packb({name: again[name] for name in fields}) == wire.packb(fields)


PROPERTIES: Mapping[str, Callable[[bytes], None]] = {
    "wire": check_wire,
    "msgpack": check_msgpack,
    "json": check_json,
}


def _accepted(op: str, data: bytes, encoding: Encoding) -> dict[str, Any] | None:
    """Fields of a request that is good; None for one that is refused as the table says."""
    with _in_time(data):
        try:
            fields = body.decode(bytearray(data), encoding, OPERATIONS[op], SETTINGS)
            call = validate(op, fields, SETTINGS)
        except EXPECTED as error:
            _check_words(error)
            return None
    assert call.idx.dtype.isnative
    assert all(array.dtype.isnative for array in call.operands.values())
    return {**fields}


def _check_words(error: Exception) -> None:
    """Check that a refusal can be written down in UTF-8."""
    field = getattr(error, "field", None)
    f"{error} {field}".encode()


@contextmanager
def _in_time(data: bytes) -> Iterator[None]:
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < _SECONDS + _SECONDS_A_BYTE * len(data), f"took {took} s"
