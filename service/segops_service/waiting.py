"""Waiting for an answer no longer than somebody wants it."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from segops_service.errors import DeadlineExceededError

T = TypeVar("T")

_PATIENCE = 0.02
"""Seconds after which it pays to look whether the client is still there."""


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Wait for work; when the time is over, cancel it.

    Raises
    ------
    DeadlineExceededError
        If the time is over.
    """
    if seconds is None:
        return await work
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise DeadlineExceededError(f"there was no answer within {seconds} s") from error


class HangUp:
    """Context that cancels a future once the client has gone.

    Most futures are done before it pays to look.

    Parameters
    ----------
    receive
        What tells of the client, whose whole request was received.
    future
        What is waited for inside.

    Raises
    ------
    ClientDisconnect
        At the end, if the client has gone.
    """

    def __init__(self, receive: Receive, future: "asyncio.Future[Any]") -> None:
        self._receive = receive
        self._future = future
        self._has_gone = False
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None  # it holds this object too, and with it the answer
        if self._has_gone and kind is asyncio.CancelledError:
            raise ClientDisconnect from error

    def _look(self) -> None:
        self._watch = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_gone = True
        self._future.cancel()
