"""What can go wrong, by who finds it.

::

    SegopsError
    ├── ArgumentError             refused here, nothing was sent; `argument` names it
    │   ├── ArgumentTypeError     also a TypeError
    │   └── ArgumentValueError    also a ValueError
    ├── TransportError            no answer arrived
    │   ├── ConnectionFailed      also a ConnectionError; nothing was computed
    │   └── RequestTimeout        also a TimeoutError; the service may have computed
    ├── InvalidAnswer             the answer is not one that a segops service gives
    └── ServiceError              the service refused; `status`, `type`, `detail`, `field`, ...
        ├── InvalidArgument       also a ValueError; an id at fault has its `position`
        ├── ArrayTooLarge         also a ValueError; a size is over a limit of that service
        ├── BodyTooLarge
        ├── RequestTooSlow        the request took too long to arrive
        ├── MalformedBody
        ├── UnsupportedMediaType
        ├── NotAcceptable
        ├── NotJsonRepresentable
        ├── NotFound
        │   └── UnknownOp
        ├── MethodNotAllowed
        ├── Unauthorized          the token is missing or not let in
        ├── DeadlineExceeded      also a TimeoutError; nobody waits for the answer any more
        ├── Overloaded            try again after `retry_after` seconds
        ├── NotReady              likewise
        ├── OutOfMemory           of the device that computes
        └── InternalError
"""

# ruff: noqa: N818 - the names say what happened, as those of the problem types do

from dataclasses import dataclass


class SegopsError(Exception):
    """Base of everything that this package raises on purpose."""


class ArgumentError(SegopsError):
    """An argument cannot be sent; ``argument`` is its name."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument = argument
        self.reason = reason

    def __str__(self) -> str:
        return f"`{self.argument}` {self.reason}"


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type or dtype."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a value that cannot be sent."""


class TransportError(SegopsError):
    """No answer arrived; the cause is the error of httpx."""


class ConnectionFailed(TransportError, ConnectionError):
    """No connection was made, so the service has seen nothing of the request."""


class RequestTimeout(TransportError, TimeoutError):
    """The answer took too long; the service may still have computed it."""


class InvalidAnswer(SegopsError):
    """The answer cannot be read; perhaps the address is not that of a segops service."""


@dataclass(frozen=True)
class Problem:
    """What a problem document (RFC 9457) says, and what the headers add.

    Attributes
    ----------
    status
        HTTP status.
    type
        URN of the kind of problem, ``about:blank`` where the answer is no problem document.
    title
        The kind of problem in words.
    detail
        What went wrong this time.
    field
        Dotted path of the argument at fault.
    position
        First row at fault within the field.
    retry_after
        Seconds after which the service asks to be tried again.
    request_id
        Name of the request in the log of the service.
    """

    status: int
    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    field: str | None = None
    position: int | None = None
    retry_after: float | None = None
    request_id: str | None = None


class ServiceError(SegopsError):
    """The service answered with a problem; the attributes are those of `Problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.status = problem.status
        self.type = problem.type
        self.title = problem.title
        self.detail = problem.detail
        self.field = problem.field
        self.position = problem.position
        self.retry_after = problem.retry_after
        self.request_id = problem.request_id

    def __str__(self) -> str:
        where = f"`{self.field}`: " if self.field else ""
        return f"{where}{self.detail or self.title} (status {self.status}, {self.type})"


class InvalidArgument(ServiceError, ValueError):
    """An argument is missing, unknown, or has the wrong type, shape or value."""


class ArrayTooLarge(ServiceError, ValueError):
    """A size is over one of the limits that the service's metadata names."""


class BodyTooLarge(ServiceError):
    """The request is longer than the service, or a proxy before it, takes."""


class RequestTooSlow(ServiceError):
    """The request took longer to arrive than the service, or a proxy before it, waits."""


class MalformedBody(ServiceError):
    """The service could not decode the request."""


class UnsupportedMediaType(ServiceError):
    """The service does not read the encoding of the request."""


class NotAcceptable(ServiceError):
    """The service does not write the encoding asked for."""


class NotJsonRepresentable(ServiceError):
    """The answer holds NaN or Inf and was asked for in JSON."""


class NotFound(ServiceError):
    """There is nothing at the address."""


class UnknownOp(NotFound):
    """The service does not know the operation; it may be older than this client."""


class MethodNotAllowed(ServiceError):
    """The address does not take the HTTP method."""


class Unauthorized(ServiceError):
    """The service asks for a bearer token and was sent none that it lets in."""


class DeadlineExceeded(ServiceError, TimeoutError):
    """The time to read the answer passed before the service had it; it sends none."""


class Overloaded(ServiceError):
    """The service has too much to do."""


class NotReady(ServiceError):
    """The service cannot compute now: it starts, stops, or lost its device."""


class OutOfMemory(ServiceError):
    """The device has not enough memory for the computation."""


class InternalError(ServiceError):
    """The service failed; its log says why."""


_BY_SLUG: dict[str, type[ServiceError]] = {
    "array-too-large": ArrayTooLarge,
    "body-too-large": BodyTooLarge,
    "deadline-exceeded": DeadlineExceeded,
    "internal": InternalError,
    "invalid-argument": InvalidArgument,
    "malformed-body": MalformedBody,
    "method-not-allowed": MethodNotAllowed,
    "not-acceptable": NotAcceptable,
    "not-found": NotFound,
    "not-json-representable": NotJsonRepresentable,
    "not-ready": NotReady,
    "out-of-memory": OutOfMemory,
    "overloaded": Overloaded,
    "request-timeout": RequestTooSlow,
    "unauthorized": Unauthorized,
    "unknown-op": UnknownOp,
    "unsupported-media-type": UnsupportedMediaType,
}
_BY_TYPE = {f"urn:segops:problem:{slug}": error for slug, error in _BY_SLUG.items()}
_BY_STATUS: dict[int, type[ServiceError]] = {
    401: Unauthorized,
    404: NotFound,
    408: RequestTooSlow,
    413: BodyTooLarge,
    429: Overloaded,
    500: InternalError,
    503: NotReady,
    507: OutOfMemory,
}


def service_error(problem: Problem) -> ServiceError:
    """Return the error for a problem: by its type, else (a proxy answered) by its status."""
    by_status = _BY_STATUS.get(problem.status, ServiceError)
    return _BY_TYPE.get(problem.type, by_status)(problem)
