"""From an answer that is no success to the error that it stands for."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from segops_client._errors import Problem, ServiceError, service_error

_SHOWN_OF_A_FOREIGN_ANSWER = 500


def error_of(response: httpx.Response) -> ServiceError:
    """Return the error for the problem document in a response, or for what a proxy says instead."""
    document = json_of(response)
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        document = {"detail": response.text[:_SHOWN_OF_A_FOREIGN_ANSWER]}
    field, position = document.get("field"), document.get("position")
    problem = Problem(
        status=response.status_code,
        type=document.get("type", "about:blank"),
        title=str(document.get("title", response.reason_phrase)),
        detail=str(document.get("detail", "")),
        field=field if isinstance(field, str) else None,
        position=position if isinstance(position, int) else None,
        retry_after=retry_after(response),
        request_id=response.headers.get("x-request-id"),
    )
    return service_error(problem)


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, given as such or as a date."""
    header = response.headers.get("retry-after", "").strip()
    if header.isdecimal():
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, (when.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def json_of(response: httpx.Response) -> Any:
    """Return what a JSON answer holds, None if it is not one."""
    if not media_type(response).endswith("json"):
        return None
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def media_type(response: httpx.Response) -> str:
    """Return the media type of an answer, empty if it names none."""
    content_type: str = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower()
