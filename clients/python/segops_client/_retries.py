"""When a request is sent again, and after which pause."""

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

Outcome = httpx.Response | httpx.RequestError

_BUSY = (429, 503)
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
_MOST_PATIENCE = 60.0


@dataclass(frozen=True)
class Retries:
    """Repeats a request that the service has not begun to compute, and no other.

    That is so where no connection was made and where the answer is 429 or 503. A lost connection
    or a read timeout is not repeated: the service may be at work on the first request.

    Attributes
    ----------
    most
        How often a request is repeated at most.
    """

    most: int

    def pause(self, outcome: Outcome, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt, or None to accept the outcome."""
        if attempt >= self.most or not _was_refused(outcome):
            return None
        asked = retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        if asked is None:
            return _backoff(attempt)
        return asked if asked <= _MOST_PATIENCE else None


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


def _was_refused(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in _BUSY
    return isinstance(outcome, (httpx.ConnectError, httpx.ConnectTimeout))


def _backoff(attempt: int) -> float:
    """Double from half a second to eight, and scatter so that clients do not return together."""
    pause = min(_LONGEST_PAUSE, math.ldexp(_FIRST_PAUSE, attempt))
    return pause * random.uniform(0.5, 1.0)
