"""Admission: how much may be under way at once, counted from a request's head to its answer."""

from types import TracebackType
from typing import Self

from segops_service.errors import OverloadedError

_RETRY_SECONDS = 1


class Admission:
    """Counts requests under way and their bytes, and refuses more than may be.

    Parameters
    ----------
    max_requests
        Requests under way at once.
    max_bytes
        Bytes of their bodies and answers.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0
        self.arriving = 0
        self.refused = 0

    def enter(self, declared_bytes: int) -> "Slot":
        """Take a slot for a request that declares the length of its body, 0 if it does not.

        Raises
        ------
        OverloadedError
            If there is no room; the caller may try again later.
        """
        if self.requests >= self.max_requests:
            self.refuse(f"{self.requests} requests are under way, and no more may be")
        slot = Slot(self)
        slot.charge(declared_bytes)
        slot.open()
        return slot

    def refuse(self, detail: str) -> None:
        """Turn a request away."""
        self.refused += 1
        raise OverloadedError(f"{detail}; try again later", retry_after=_RETRY_SECONDS)


class Slot:
    """Room for one request, given back when its context ends."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self._is_arriving = False

    def open(self) -> None:
        """Count the request as under way and arriving."""
        self._admission.requests += 1
        self._admission.arriving += 1
        self._is_arriving = True

    def charge(self, total_bytes: int) -> None:
        """Count ``total_bytes`` for body and answer, if that is more than was counted before."""
        admission, more = self._admission, total_bytes - self._bytes
        if more <= 0:
            return
        if admission.bytes + more > admission.max_bytes:
            admission.refuse(
                f"the bodies and answers under way would take over {admission.max_bytes} bytes"
            )
        admission.bytes += more
        self._bytes = total_bytes

    def arrived(self) -> None:
        """Note that the body is there and in the engine's hands: nothing waits for it any more."""
        if self._is_arriving:
            self._admission.arriving -= 1
            self._is_arriving = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.arrived()
        self._admission.requests -= 1
        self._admission.bytes -= self._bytes
