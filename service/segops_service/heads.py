"""Heads: what the headers of a request say about its body, its answer and its time.

Clients send the same few headers again and again, so what they mean is remembered.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

from starlette.types import Scope

from segops_service.body import ENCODINGS, Encoding
from segops_service.errors import (
    InvalidArgumentError,
    NotAcceptableError,
    UnsupportedMediaTypeError,
)

TIMEOUT_HEADER = "X-Request-Timeout"

_KNOWN = ", ".join(ENCODINGS)
_LONGEST_ACCEPT = 4096
"""Bytes of ``Accept`` that are read: the whole of a head would keep the loop for too long."""


class Head(NamedTuple):
    """What a head says.

    Attributes
    ----------
    sent
        Encoding of the body.
    wanted
        Encoding of the answer.
    length
        Declared length of the body, 0 where it is not declared.
    seconds
        Time that the caller gives the request, if it says so.
    """

    sent: Encoding
    wanted: Encoding
    length: int
    seconds: float | None


def read(scope: Scope) -> Head:
    """Read the headers of a request.

    Raises
    ------
    UnsupportedMediaTypeError
        If the encoding of the body is not one that is read here.
    NotAcceptableError
        If none of the encodings that the caller accepts can be written here.
    InvalidArgumentError
        If the time limit is no positive number.
    """
    headers = dict(scope["headers"])
    coding, media_type = headers.get(b"content-encoding"), headers.get(b"content-type", b"")
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept")
    sent = _sent(coding, media_type)
    return Head(
        sent,
        _wanted(accept[:_LONGEST_ACCEPT], sent),
        _length(headers.get(b"content-length", b"")),
        _seconds(headers.get(TIMEOUT_HEADER.lower().encode())),
    )


@lru_cache(256)
def _sent(coding: bytes | None, content_type: bytes) -> Encoding:
    if coding is not None and coding.strip().lower() != b"identity":
        raise UnsupportedMediaTypeError(
            f"content encoding {coding.decode('latin-1')!r} is not read here; send it plain"
        )
    media_type = content_type.decode("latin-1").partition(";")[0].strip().lower()
    if media_type not in ENCODINGS:
        raise UnsupportedMediaTypeError(f"content type must be one of {_KNOWN}, not {media_type!r}")
    return ENCODINGS[media_type]


@lru_cache(256)
def _wanted(accept: bytes, sent: Encoding) -> Encoding:
    """Choose the encoding of the answer: the request's, unless ``Accept`` prefers the other."""
    accepted = _accepted(accept.decode("latin-1") or "*/*")
    best = max(Encoding, key=lambda encoding: (_quality(accepted, encoding), encoding is sent))
    if _quality(accepted, best) == 0:
        raise NotAcceptableError(f"the answer can be one of {_KNOWN}")
    return best


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
    names = [name for name, known in ENCODINGS.items() if known is encoding]
    exact = [accepted[name] for name in names if name in accepted]
    return max(exact) if exact else accepted.get("application/*", accepted.get("*/*", 0.0))


def _length(declared: bytes) -> int:
    return int(declared) if declared.isdigit() else 0


def _seconds(text: bytes | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = 0.0 if b"_" in text else float(text)  # Python's own way to write numbers
    except ValueError:
        seconds = 0.0
    if not (seconds > 0 and isfinite(seconds)):
        shown = text.decode("latin-1")
        raise InvalidArgumentError(
            f"{TIMEOUT_HEADER} must be a positive number of seconds, not {shown!r:.40}",
            field=TIMEOUT_HEADER,
        )
    return seconds
