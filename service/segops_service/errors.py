"""Faults of a request, in words that know no HTTP.

ServiceError
 |- MalformedBodyError           the body is no JSON or msgpack map
 |- UnsupportedMediaTypeError    the body's encoding is not one that is read here
 |- NotAcceptableError           no encoding the caller accepts can be written here
 |- BodyTooLargeError            the body is longer than the limit
 |- InvalidArgumentError         a field is missing, unknown or wrong
 |- ArrayTooLargeError           a field is right, but over a limit of this server
 |- NotJsonRepresentableError    the answer holds NaN or Inf and JSON was asked for
 |- OverloadedError              there is no room in the queue
 |- DeadlineExceededError        the caller's own time limit passed
 |- NotReadyError                the device is not there, not yet, or no longer
 `- OutOfMemoryError             the device could not hold this computation
"""


class ServiceError(Exception):
    """Base of all faults; ``field`` is a dotted path into the request's body.

    Parameters
    ----------
    detail
        One sentence that says what is wrong and what would repair it.
    field
        The field at fault, where one is.
    """

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class MalformedBodyError(ServiceError):
    """The body is no map in the encoding that its content type names."""


class UnsupportedMediaTypeError(ServiceError):
    """The body's media type or content coding is not read here."""


class NotAcceptableError(ServiceError):
    """The ``Accept`` header leaves no encoding for the answer."""


class BodyTooLargeError(ServiceError):
    """The body is longer than the limit."""


class InvalidArgumentError(ServiceError):
    """A field of the body is missing, unknown, or has the wrong type, shape or value."""


class ArrayTooLargeError(ServiceError):
    """A size is over a limit of this server."""


class NotJsonRepresentableError(ServiceError):
    """The answer holds NaN or Inf, which JSON cannot carry."""


class OverloadedError(ServiceError):
    """The queue is full.

    Parameters
    ----------
    detail
        What is full.
    retry_after
        Whole seconds after which another try has a chance.
    """

    def __init__(self, detail: str, *, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class DeadlineExceededError(ServiceError):
    """The time that the caller gave passed before there was an answer."""


class NotReadyError(ServiceError):
    """The engine cannot compute now."""


class OutOfMemoryError(ServiceError):
    """The device's memory does not hold this computation."""
