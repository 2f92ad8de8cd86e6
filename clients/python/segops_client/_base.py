"""All of a client that needs no I/O: its settings, and calls as the bytes to send."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import httpx
import numpy as np

from segops_client import _arguments as arguments
from segops_client._arguments import Array, ArrayLike
from segops_client._errors import ArgumentTypeError, ArgumentValueError
from segops_client._retries import Retries
from segops_client._version import __version__
from segops_client.wire import MEDIA_TYPE, WireError, packb

OutOfRange: TypeAlias = Literal["drop", "error"]
Op: TypeAlias = str | Callable[..., Any]

DEFAULT_TIMEOUT = httpx.Timeout(120.0, connect=5.0)

_OPERANDS = {
    "segmented_sum": ("x",),
    "segmented_mean": ("x",),
    "segmented_dot": ("x", "y"),
    "segmented_rms_norm": ("x",),
    "segmented_mul": ("x", "y"),
    "segmented_matvec": ("v", "m"),
}


def _signature(operands: Sequence[str]) -> inspect.Signature:
    parameter = inspect.Parameter
    return inspect.Signature(
        [
            *(
                parameter(name, parameter.POSITIONAL_OR_KEYWORD)
                for name in (*operands, "idx", "num_segments")
            ),
            parameter("indices_are_sorted", parameter.KEYWORD_ONLY, default=False),
        ]
    )


_SIGNATURES = {name: _signature(operands) for name, operands in _OPERANDS.items()}


class BaseClient:
    """What clients share, whichever way they send."""

    def __init__(
        self, url: str, *, retries: int, out_of_range: OutOfRange, token: str | None
    ) -> None:
        if out_of_range not in get_args(OutOfRange):
            raise ArgumentValueError("out_of_range", "must be 'drop' or 'error'")
        self._url = _checked_url(url)
        self._retries = Retries(retries)
        self._out_of_range = out_of_range
        self._headers = {
            "accept-encoding": "identity",  # numbers do not compress
            "user-agent": f"segops-client/{__version__}",
        } | ({"authorization": f"Bearer {token}"} if token else {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._url)!r})"

    def _encode(
        self,
        op: str,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        want: Sequence[str],
        cotangent: ArrayLike | None,
        tangents: Mapping[str, ArrayLike] | None,
    ) -> bytes:
        call = _SIGNATURES[op].bind(*args, **options)
        call.apply_defaults()
        given = call.arguments
        fields: dict[str, Any] = {
            **_arrays({name: given[name] for name in _OPERANDS[op]}, cotangent, tangents),
            "idx": arguments.ids(given["idx"]),
            "num_segments": arguments.num_segments(given["num_segments"]),
            "indices_are_sorted": arguments.flag("indices_are_sorted", given["indices_are_sorted"]),
            "out_of_range": self._out_of_range,
            "want": want,
        }
        try:
            return packb(fields)
        except WireError as error:
            raise ArgumentValueError(error.field, error.reason) from error


def call_headers(timeout: httpx.Timeout) -> dict[str, str]:
    """Return the headers of a call; they tell the service how long its answer is waited for."""
    headers = {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE}
    if timeout.read:
        headers["x-request-timeout"] = np.format_float_positional(timeout.read, trim="-")
    return headers


def operation(op: Op) -> str:
    """Return the name of an operation given by name, as a method or as the library's function."""
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in _OPERANDS:
        raise ArgumentValueError("op", f"is {name!r}; the operations are {', '.join(_OPERANDS)}")
    return name


def _arrays(
    operands: Mapping[str, ArrayLike],
    cotangent: ArrayLike | None,
    tangents: Mapping[str, ArrayLike] | None,
) -> dict[str, Array | dict[str, Array]]:
    """Return the floating fields of a request, all of one dtype."""
    if not isinstance(tangents, Mapping | None):
        raise ArgumentTypeError("tangents", "must map names of operands to arrays")
    direct = {**operands} if cotangent is None else {**operands, "cotangent": cotangent}
    nested = {f"tangents.{name}": tangent for name, tangent in (tangents or {}).items()}
    arrays = arguments.floats(direct | nested)
    fields: dict[str, Array | dict[str, Array]] = {name: arrays[name] for name in direct}
    if tangents is not None:
        fields["tangents"] = {name: arrays[f"tangents.{name}"] for name in tangents}
    return fields


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ArgumentValueError("url", f"is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ArgumentValueError("url", f"is {url!r}; write it as 'http://host:port'")
    return parsed
