"""Client of a segops service: the library's operations with NumPy arrays and without JAX.

The arrays travel in the encoding of `segops_client.wire`; the errors are drawn as a tree in
`segops_client._errors`.
"""

from segops_client._answers import Health
from segops_client._base import __version__
from segops_client._client import Client
from segops_client._errors import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    ArrayTooLarge,
    BodyTooLarge,
    ConnectionFailed,
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
    SegopsError,
    ServiceError,
    TransportError,
    UnknownOp,
    UnsupportedMediaType,
)

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "ArrayTooLarge",
    "BodyTooLarge",
    "Client",
    "ConnectionFailed",
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
    "SegopsError",
    "ServiceError",
    "TransportError",
    "UnknownOp",
    "UnsupportedMediaType",
    "__version__",
]
