"""The clients: what they send, when they hang up, and what they make of the answers."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.service.connection import (
    Answer,
    Connection,
    LostAnswerError,
    request,
)
from benchmarks.soak import hostile
from benchmarks.soak.hostile import Hostile
from benchmarks.soak.pool import Case
from benchmarks.soak.tally import Tally

LOST, WRONG, STATUS, HELD = "lost answer", "wrong answer", "unexpected status", "held for long"
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_OVERLOADED = 429
_LATE = 503

SHARES = {"malformed": 0.05, "aborted": 0.05, "late": 0.05}
"""Of all exchanges; the others are sound requests that wait for their answer."""


class Client:
    """One client after another kind of exchange, drawn at random, on a connection that it keeps.

    Parameters
    ----------
    host, port
        The server.
    cases
        The sound requests.
    tally
        Where outcomes are counted.
    rng
        What is drawn from.
    patience
        Seconds to wait for an answer before it counts as lost.
    """

    def __init__(
        self,
        host: str,
        port: int,
        cases: list[Case],
        tally: Tally,
        rng: np.random.Generator,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._address = host, port
        self._connection = Connection(host, port)
        self._cases = cases
        self._hostile = hostile.fixed()
        self._tally = tally
        self._rng = rng
        self._patience = patience

    async def run(self, deadline: float) -> None:
        """Go on until a time of ``time.monotonic``."""
        kinds: Mapping[str, Callable[[], Awaitable[None]]] = {
            "malformed": self.malformed,
            "aborted": self.aborted,
            "late": self.late,
            "sound": self.sound,
        }
        shares = [*SHARES.values(), 1 - sum(SHARES.values())]
        while time.monotonic() < deadline:
            await kinds[str(self._rng.choice(list(kinds), p=shares))]()
        self.close()

    def close(self) -> None:
        """Give the connection up."""
        self._connection.close()

    async def sound(self) -> None:
        """Send a sound request: the right answer must come, or a refusal for overload."""
        case = self._draw()
        answer = await self._exchange("sound", case.name, _message(case))
        if answer is not None:
            self._judge("sound", case, answer)

    async def late(self) -> None:
        """Send a sound request with next to no time: the right answer must come, or a 503."""
        case = self._draw()
        seconds = f"{self._rng.choice([1e-6, 5e-4, 2e-3]):.6f}"
        answer = await self._exchange("late", case.name, _message(case, x_request_timeout=seconds))
        if answer is None:
            return
        if answer.status == _LATE and _slug(answer) == "deadline-exceeded":
            self._tally.count("late", "503 deadline-exceeded")
        else:
            self._judge("late", case, answer)

    async def malformed(self) -> None:
        """Send what must be refused, and go on with the connection where it is left open."""
        wrong = self._draw_hostile()
        may_close = hostile.CLOSED in wrong.statuses
        answer = await self._exchange("malformed", wrong.name, wrong.message, may_close=may_close)
        if answer is None:
            return
        if not wrong.whole:
            self._connection.close()
        if answer.status in wrong.statuses:
            self._tally.count("malformed", str(answer.status))
        else:
            self._tally.fault("malformed", STATUS, f"{wrong.name}: {_shown(answer)}")

    async def aborted(self) -> None:
        """Hang up in the middle of an upload or while the answer is computed."""
        case = self._draw()
        message = _message(case)
        is_upload = self._rng.random() < 0.5
        sent = message[: int(self._rng.integers(1, len(message)))] if is_upload else message
        connection = Connection(*self._address)
        try:
            _, writer = await connection.streams()
            writer.write(sent)
            await asyncio.wait_for(writer.drain(), self._patience)
            await asyncio.sleep(self._rng.uniform(0, 0.005))
            connection.close(at_once=self._rng.random() < 0.5)
        except OSError as error:
            self._tally.fault("aborted", LOST, f"{case.name}: {error}")
        else:
            where = "while sending" if is_upload else "while waiting"
            self._tally.count("aborted", f"hung up {where}")

    def _draw(self) -> Case:
        return self._cases[self._rng.integers(len(self._cases))]

    def _draw_hostile(self) -> Hostile:
        if self._rng.random() < 0.3:
            return hostile.random(self._rng, self._draw_msgpack().body)
        return self._hostile[self._rng.integers(len(self._hostile))]

    def _draw_msgpack(self) -> Case:
        while (case := self._draw()).path != f"/v1/{hostile.OP}" or case.is_json:
            pass
        return case

    async def _exchange(
        self, kind: str, name: str, message: bytes, *, may_close: bool = False
    ) -> Answer | None:
        """Return the answer; where none comes, count that and return None."""
        began = time.perf_counter()
        try:
            answer = await asyncio.wait_for(self._connection.exchange(message), self._patience)
        except TimeoutError:
            self._tally.fault(kind, LOST, f"{name}: nothing within {self._patience} s")
        except (OSError, LostAnswerError) as error:
            if may_close:
                self._tally.count(kind, "closed")
            else:
                self._tally.fault(kind, LOST, f"{name}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)
        else:
            self._tally.latencies[kind].append(time.perf_counter() - began)
            return answer
        return None

    def _judge(self, kind: str, case: Case, answer: Answer) -> None:
        if answer.status == _OVERLOADED and answer.headers.get("retry-after", "").isdecimal():
            self._tally.count(kind, "429 overloaded")
        elif answer.status != 200:
            self._tally.fault(kind, STATUS, f"{case.name}: {_shown(answer)}")
        elif wrong := case.fault(answer.body):
            self._tally.fault(kind, WRONG, wrong)
        else:
            self._tally.count(kind, "200 right")


def _message(case: Case, **headers: str) -> bytes:
    return request(case.path, case.body, case.media_type, **headers)


def _slug(answer: Answer) -> str:
    try:
        document: Any = json.loads(answer.body)
        return str(document["type"]).rpartition(":")[2]
    except (ValueError, KeyError, TypeError):
        return ""


def _shown(answer: Answer) -> str:
    return f"{answer.status} {answer.body[:300]!r}"
