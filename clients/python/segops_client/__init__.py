"""Client of a segops service: the library's operations with NumPy arrays and without JAX.

The arrays travel in the encoding of `segops_client.wire`; the errors are drawn as a tree in
`segops_client._errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segops_client._errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    ArrayTooLarge,
    BodyTooLarge,
    ConnectionFailed,
    DeadlineExceeded,
    InternalError,
    InvalidAnswer,
    InvalidArgument,
    MalformedBody,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    NotJsonRepresentable,
    NotReady,
    OutOfMemory,
    Overloaded,
    Problem,
    RequestTimeout,
    RequestTooSlow,
    SegopsError,
    ServiceError,
    TransportError,
    Unauthorized,
    UnknownOp,
    UnsupportedMediaType,
)
from segops_client._version import __version__

if TYPE_CHECKING:
    from segops_client._answers import Health
    from segops_client._client import Client

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "ArrayTooLarge",
    "BodyTooLarge",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Health",
    "InternalError",
    "InvalidAnswer",
    "InvalidArgument",
    "MalformedBody",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "NotJsonRepresentable",
    "NotReady",
    "OutOfMemory",
    "Overloaded",
    "Problem",
    "RequestTimeout",
    "RequestTooSlow",
    "SegopsError",
    "ServiceError",
    "TransportError",
    "Unauthorized",
    "UnknownOp",
    "UnsupportedMediaType",
    "__version__",
]

_WITH_HTTPX = {"Client": "segops_client._client", "Health": "segops_client._answers"}


def __getattr__(name: str) -> Any:
    """Import what needs httpx when it is first asked for: the service needs `wire` alone."""
    if name not in _WITH_HTTPX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_HTTPX[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
