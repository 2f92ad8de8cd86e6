"""The client that blocks until the answer is there."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from segops_client._answers import Health, read_arrays, read_health, read_json, settle
from segops_client._arguments import Array, ArrayLike
from segops_client._base import (
    DEFAULT_TIMEOUT,
    BaseClient,
    Op,
    OutOfRange,
    call_headers,
    operation,
)
from segops_client._retries import Outcome, Retries


class Client(BaseClient):
    """The library's operations, computed by a segops service.

    The six operations and `value_and_vjp`, `jvp` and `hvp` have the signatures and the meaning of
    the functions of the same names in ``segops``. Operands are NumPy arrays, anything with
    ``__array__`` or DLPack (JAX arrays, CPU tensors of PyTorch), numbers, or nested lists. Arrays
    must be float32 or float64, all of one dtype; numbers and lists take the dtype of the arrays
    beside them, or float32 where there are none. Results are NumPy arrays of the operands' dtype
    that belong to the caller: writable, aligned, sharing memory with nothing.

    A client keeps connections open and may be shared by threads. Close it, or use it in a ``with``
    statement.

    Parameters
    ----------
    url
        Address of the service, such as ``http://localhost:8000``; a path is a prefix of all routes.
    timeout
        Limits of `httpx`, in seconds. The first call of a kind waits for its compilation, so the
        time to read an answer is generous. The service is told that time and, counted from the
        start of the request, drops by then what it has not computed; a call whose time passed,
        there (`DeadlineExceeded`) or here (`RequestTimeout`), is a `TimeoutError` and not repeated.
    retries
        How often a request is repeated, with growing pauses or those that the service asks for
        (up to a minute), where no connection was made or the service had no room (429) or was not
        ready (503).
    out_of_range
        What becomes of rows whose id lies outside ``[0, num_segments)``: ``"drop"`` leaves them
        out, as the library does, and ``"error"`` has the service refuse the request, naming the
        first such row.
    token
        Bearer token to authorize with.
    transport
        Transport of `httpx` to send by, for tests, Unix sockets or other pool sizes.

    Raises
    ------
    SegopsError
        One of its subclasses tells a fault of an argument, of the connection or of the service; a
        call that does not fit the signature is a plain `TypeError`.

    Examples
    --------
    >>> with Client("http://localhost:8000") as client:  # doctest: +SKIP
    ...     client.segmented_sum([1.0, 2.0, 3.0], [0, 0, 1], 2)
    array([3., 3.], dtype=float32)
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: httpx.Timeout | float | None = DEFAULT_TIMEOUT,
        retries: int = 2,
        out_of_range: OutOfRange = "drop",
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, retries=retries, out_of_range=out_of_range, token=token)
        self._http = httpx.Client(
            base_url=self._url, timeout=timeout, headers=self._headers, transport=transport
        )
        self._call_headers = call_headers(self._http.timeout)

    def __enter__(self) -> Self:
        self._http.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        self._http.close()

    def segmented_sum(
        self,
        x: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return the sum of the rows of ``x``, shape (N,) or (N, 3), in each segment."""
        return self._value(
            "segmented_sum", x, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def segmented_mean(
        self,
        x: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return the mean of the rows of ``x``, shape (N,) or (N, 3); 0 for empty segments."""
        return self._value(
            "segmented_mean", x, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def segmented_dot(
        self,
        x: ArrayLike,
        y: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return the sum over each segment of the dot products of rows, shapes (N, 3)."""
        return self._value(
            "segmented_dot", x, y, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def segmented_rms_norm(
        self,
        x: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return the root of the mean squared norm of the rows of ``x``, shape (N, 3)."""
        return self._value(
            "segmented_rms_norm", x, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def segmented_mul(
        self,
        x: ArrayLike,
        y: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return each row of ``x``, shape (N, 3), times the scalar ``y``, (S,), of its segment."""
        return self._value(
            "segmented_mul", x, y, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def segmented_matvec(
        self,
        v: ArrayLike,
        m: ArrayLike,
        idx: ArrayLike,
        num_segments: int,
        *,
        indices_are_sorted: bool = False,
    ) -> Array:
        """Return ``m[idx[i]].T @ v[i]`` for each row of ``v``, (N, 3), with ``m`` (S, 3, 3)."""
        return self._value(
            "segmented_matvec", v, m, idx, num_segments, indices_are_sorted=indices_are_sorted
        )

    def value_and_vjp(
        self, op: Op, *args: Any, cotangent: ArrayLike | None = None, **options: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Return an operation's value, and the derivative of ``<cotangent, value>``.

        Parameters
        ----------
        op
            Name of an operation, a method of this client, or the library's function.
        *args
            Arguments of the operation.
        cotangent
            Weights of the value's elements; ones if not given.
        **options
            ``indices_are_sorted``.

        Returns
        -------
        tuple
            The value, and the derivative by operand name.
        """
        answer = self._call(op, args, options, ("value", "vjp"), cotangent)
        return answer["value"], answer["vjp"]

    def jvp(self, op: Op, *args: Any, tangents: Mapping[str, ArrayLike], **options: Any) -> Array:
        """Return the derivative of an operation's value along ``tangents``.

        Parameters
        ----------
        op
            Name of an operation, a method of this client, or the library's function.
        *args
            Arguments of the operation.
        tangents
            Directions by operand name; missing ones are zero.
        **options
            ``indices_are_sorted``.
        """
        derivative: Array = self._call(op, args, options, ("jvp",), None, tangents)["jvp"]
        return derivative

    def hvp(
        self,
        op: Op,
        *args: Any,
        tangents: Mapping[str, ArrayLike],
        cotangent: ArrayLike | None = None,
        **options: Any,
    ) -> dict[str, Array]:
        """Return the second derivative of ``<cotangent, value>`` times ``tangents``.

        Parameters
        ----------
        op
            Name of an operation, a method of this client, or the library's function.
        *args
            Arguments of the operation.
        tangents
            Directions by operand name; missing ones are zero.
        cotangent
            Weights of the value's elements; ones if not given.
        **options
            ``indices_are_sorted``.

        Returns
        -------
        dict
            The product by operand name.
        """
        product: dict[str, Array] = self._call(op, args, options, ("hvp",), cotangent, tangents)[
            "hvp"
        ]
        return product

    def health(self) -> Health:
        """Return whether the service is ready to compute; a service that is not there raises."""
        return read_health(self._send(self._get("/v1/health/ready"), Retries(0)))

    def metadata(self) -> dict[str, Any]:
        """Return the service's versions, devices, limits and operations."""
        return read_json(self._send(self._get("/v1/metadata"), self._retries))

    def _value(self, op: str, *args: Any, **options: Any) -> Array:
        value: Array = self._call(op, args, options, ("value",))["value"]
        return value

    def _call(
        self,
        op: Op,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        want: tuple[str, ...],
        cotangent: ArrayLike | None = None,
        tangents: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Any]:
        name = operation(op)
        body = self._encode(name, args, options, want, cotangent, tangents)
        request = self._http.build_request(
            "POST", f"/v1/{name}", content=body, headers=self._call_headers
        )
        return read_arrays(self._send(request, self._retries), want)

    def _get(self, path: str) -> httpx.Request:
        return self._http.build_request("GET", path, headers={"accept": "application/json"})

    def _send(self, request: httpx.Request, retries: Retries) -> httpx.Response:
        attempt = 0
        outcome = self._try(request)
        while (pause := retries.pause(outcome, attempt)) is not None:
            time.sleep(pause)
            attempt += 1
            outcome = self._try(request)
        return settle(outcome)

    def _try(self, request: httpx.Request) -> Outcome:
        try:
            return self._http.send(request)
        except httpx.RequestError as error:
            return error
