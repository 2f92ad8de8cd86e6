"""From an answer of the service to arrays, or to the error that it stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from segops_client._errors import (
    ConnectionFailed,
    InvalidAnswer,
    RequestTimeout,
    SegopsError,
    TransportError,
)
from segops_client._problems import error_of, json_of, media_type
from segops_client._retries import Outcome
from segops_client.wire import MEDIA_TYPES, Limits, WireError, unpackb

_LIMITS = Limits(max_bytes=2**40)  # the answer is in memory already


@dataclass(frozen=True)
class Health:
    """What a service says of itself; that it answers shows that it lives.

    Attributes
    ----------
    ready
        Whether it computes now.
    detail
        Why not, where it is not ready.
    """

    ready: bool
    detail: str = ""


def settle(outcome: Outcome) -> httpx.Response:
    """Return a response that arrived, whatever its status, or raise."""
    if isinstance(outcome, httpx.Response):
        return outcome
    raise _transport_error(outcome) from outcome


def read_arrays(response: httpx.Response, want: Sequence[str]) -> dict[str, Any]:
    """Return what was wanted from an answer, in arrays that are the caller's own."""
    _raise_for_problem(response)
    if media_type(response) not in MEDIA_TYPES:
        raise _foreign(response)
    try:
        answer = unpackb(response.content, limits=_LIMITS)
    except WireError as error:
        raise InvalidAnswer(f"the answer of {response.url} cannot be read: {error}") from error
    if not isinstance(answer, dict) or answer.keys() != {*want}:
        raise InvalidAnswer(f"the answer of {response.url} does not hold {', '.join(want)}")
    return {name: _own(value) for name, value in answer.items()}


def read_json(response: httpx.Response) -> dict[str, Any]:
    """Return the map of a JSON answer."""
    _raise_for_problem(response)
    answer = json_of(response)
    if not isinstance(answer, dict):
        raise _foreign(response)
    return answer


def read_health(response: httpx.Response) -> Health:
    """Return what an answer to the readiness route says."""
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return Health(False, error_of(response).detail)
    _raise_for_problem(response)
    return Health(True)


def _raise_for_problem(response: httpx.Response) -> None:
    if not response.is_success:
        raise error_of(response)


def _transport_error(error: httpx.RequestError) -> SegopsError:
    where = f"{error.request.method} {error.request.url}: {type(error).__name__}: {error}"
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return ConnectionFailed(where)
    if isinstance(error, httpx.TimeoutException):
        return RequestTimeout(where)
    return TransportError(where)


def _foreign(response: httpx.Response) -> InvalidAnswer:
    kind = media_type(response) or "of no media type"
    return InvalidAnswer(f"the answer of {response.url} is {kind}; is a segops service there?")


def _own(value: Any) -> Any:
    """Copy arrays out of the answer: aligned, writable, and without the rest of the answer."""
    if isinstance(value, dict):
        return {name: _own(array) for name, array in value.items()}
    if not isinstance(value, np.ndarray):
        raise InvalidAnswer(f"the answer holds a {type(value).__name__} where an array belongs")
    return value.copy()
