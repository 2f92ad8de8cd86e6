"""RFC 9457 problem documents: one table from exception to type and status."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import segops
from segops_client.wire import WireError
from segops_service import errors
from segops_service.exchange import exchange_of
from segops_service.operations import OPERATIONS

MEDIA_TYPE = "application/problem+json"
HANG_UP = "hang-up"
"""What stands for the problem of a request whose client has gone."""

_CLIENT_CLOSED_REQUEST = 499
_LONGEST = 1000


@dataclass(frozen=True)
class Problem:
    """A kind of problem; its type never changes once published."""

    slug: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """URN of this kind."""
        return f"urn:segops:problem:{self.slug}"


MALFORMED_REQUEST = Problem("malformed-request", 400, "The request is not valid HTTP")
MALFORMED_BODY = Problem("malformed-body", 400, "The body cannot be read")
UNAUTHORIZED = Problem("unauthorized", 401, "A bearer token is needed")
NOT_FOUND = Problem("not-found", 404, "There is nothing at this address")
UNKNOWN_OP = Problem("unknown-op", 404, "There is no such operation")
METHOD_NOT_ALLOWED = Problem("method-not-allowed", 405, "The address does not take this method")
NOT_ACCEPTABLE = Problem("not-acceptable", 406, "No accepted encoding can be written")
REQUEST_TIMEOUT = Problem("request-timeout", 408, "The request arrives too slowly")
BODY_TOO_LARGE = Problem("body-too-large", 413, "The body is too large")
UNSUPPORTED_MEDIA_TYPE = Problem("unsupported-media-type", 415, "The encoding is not read here")
INVALID_ARGUMENT = Problem("invalid-argument", 422, "An argument is invalid")
ARRAY_TOO_LARGE = Problem("array-too-large", 422, "An array is too large for this server")
NOT_JSON = Problem("not-json-representable", 422, "The answer cannot be written as JSON")
OVERLOADED = Problem("overloaded", 429, "The server has too much to do")
HEAD_TOO_LARGE = Problem("head-too-large", 431, "The head of the request is too large")
INTERNAL = Problem("internal", 500, "The server failed")
NOT_READY = Problem("not-ready", 503, "The server cannot compute now")
DEADLINE_EXCEEDED = Problem("deadline-exceeded", 503, "The request's time limit passed")
OUT_OF_MEMORY = Problem("out-of-memory", 507, "The device has not enough memory")

PROBLEMS: Mapping[type[Exception], Problem] = {
    errors.MalformedBodyError: MALFORMED_BODY,
    errors.UnsupportedMediaTypeError: UNSUPPORTED_MEDIA_TYPE,
    errors.NotAcceptableError: NOT_ACCEPTABLE,
    errors.BodyTooLargeError: BODY_TOO_LARGE,
    errors.InvalidArgumentError: INVALID_ARGUMENT,
    errors.ArrayTooLargeError: ARRAY_TOO_LARGE,
    errors.NotJsonRepresentableError: NOT_JSON,
    errors.OverloadedError: OVERLOADED,
    errors.DeadlineExceededError: DEADLINE_EXCEEDED,
    errors.NotReadyError: NOT_READY,
    errors.OutOfMemoryError: OUT_OF_MEMORY,
    WireError: MALFORMED_BODY,
    segops.ArgumentError: INVALID_ARGUMENT,
    MemoryError: OUT_OF_MEMORY,
}


class Document(msgspec.Struct, omit_defaults=True):
    """Body of a problem answer."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    position: int | None = None


class ProblemResponse(Response):
    """A problem document; sending it notes the problem with the request."""

    media_type = MEDIA_TYPE

    def __init__(
        self, problem: Problem, document: Document, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(msgspec.json.encode(document), problem.status, headers)
        self._slug = problem.slug

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the document."""
        exchange_of(scope).problem = self._slug
        await super().__call__(scope, receive, send)


def problem_response(
    problem: Problem,
    detail: str,
    *,
    field: str | None = None,
    position: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer that tells what went wrong with this request.

    Parameters
    ----------
    problem
        The kind of problem.
    detail
        What it was this time.
    field
        The field of the body at fault, as a dotted path.
    position
        The first row at fault within the field.
    headers
        Headers to send along.
    """
    document = Document(
        problem.type,
        problem.title,
        problem.status,
        detail[:_LONGEST],  # details and paths repeat names that the sender chose
        None if field is None else field[:_LONGEST],
        position,
    )
    return ProblemResponse(problem, document, headers)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every exception, the framework's own included, with a problem document."""
    for kind in PROBLEMS:
        app.add_exception_handler(kind, _expected)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _request_validation)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(Exception, _unexpected)


def is_foreseen(error: Exception) -> bool:
    """Whether an error says something about the request, and not about this server."""
    return any(kind in PROBLEMS for kind in type(error).__mro__)


async def response_to(request: Request, error: Exception) -> Response:
    """Answer an error of an endpoint outside of the framework, as the framework would."""
    return await (_expected if is_foreseen(error) else _unexpected)(request, error)


async def _expected(_: Request, error: Exception) -> Response:
    problem = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    return problem_response(
        problem,
        str(error),
        field=getattr(error, "field", None) or getattr(error, "argument", None),
        position=getattr(error, "position", None),
        headers=_headers(error),
    )


def _headers(error: Exception) -> dict[str, str] | None:
    if isinstance(error, errors.OverloadedError):
        return {"retry-after": str(error.retry_after)}
    return None


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem, detail = _framework_problem(request, error)
    return problem_response(problem, detail, headers=error.headers)


def _framework_problem(request: Request, error: HTTPException) -> tuple[Problem, str]:
    path = request.url.path
    if error.status_code == METHOD_NOT_ALLOWED.status:
        return METHOD_NOT_ALLOWED, f"{path} does not take {request.method}"
    if error.status_code != NOT_FOUND.status:
        status = HTTPStatus(error.status_code)
        slug = status.phrase.lower().replace(" ", "-")
        return Problem(slug, status, status.phrase), str(error.detail)
    if re.fullmatch("/v1/[^/]+", path):
        return UNKNOWN_OP, f"the operations are {', '.join(OPERATIONS)}"
    return NOT_FOUND, f"nothing is served at {path}"


async def _request_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"][1:]))
    return problem_response(INVALID_ARGUMENT, first["msg"], field=field)


async def _disconnected(request: Request, _: Exception) -> Response:
    """Nobody reads this answer; it keeps a hang-up from counting as a failure of the server."""
    exchange_of(request.scope).problem = HANG_UP
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, _: Exception) -> Response:
    # The server closes the connection after a failure; the header keeps clients from reusing it.
    request_id = exchange_of(request.scope).request_id
    return problem_response(
        INTERNAL,
        f"the request failed here; the server's log says why, at the request id {request_id}",
        headers={"connection": "close"},
    )
