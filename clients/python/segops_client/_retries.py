"""When a request is sent again, and after which pause."""

import math
import random
from dataclasses import dataclass

import httpx

from segops_client._errors import NotReady, Overloaded
from segops_client._problems import error_of, retry_after

Outcome = httpx.Response | httpx.RequestError

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
_MOST_PATIENCE = 60.0


@dataclass(frozen=True)
class Retries:
    """Repeats a request that the service has not begun to compute, and no other.

    That is so where no connection was made and where the answer is that the service has no room
    (429) or is not ready (503). A lost connection or a read timeout is not repeated: the service
    may be at work on the first request. Nor is a request whose time passed in the service (503 as
    well): it would pass again.

    Attributes
    ----------
    most
        How often a request is repeated at most.
    """

    most: int

    def pause(self, outcome: Outcome, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt, or None to accept the outcome.

        At least what the service asks for, and scattered, so that clients do not return together.
        """
        if attempt >= self.most or not _was_refused(outcome):
            return None
        asked = retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        if asked is None:
            return _backoff(attempt)
        return asked * random.uniform(1.0, 1.25) if asked <= _MOST_PATIENCE else None


def _was_refused(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.is_error and isinstance(error_of(outcome), (Overloaded, NotReady))
    return isinstance(outcome, (httpx.ConnectError, httpx.ConnectTimeout))


def _backoff(attempt: int) -> float:
    """Double from half a second to eight."""
    pause = min(_LONGEST_PAUSE, math.ldexp(_FIRST_PAUSE, attempt))
    return pause * random.uniform(0.5, 1.0)
