"""SIGTERM at full load: what becomes of the requests under way, and the exit code."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import uvloop

from benchmarks.service import problems, server
from benchmarks.service.connection import Connection, LostAnswerError, request
from benchmarks.service.small import CONNECTIONS, OP, ROWS, SEGMENTS

_PATIENCE_SECONDS = 30
RIGHT, REFUSED = "right", "refused"


@dataclass(frozen=True)
class Figures:
    """All drains together.

    Attributes
    ----------
    answered
        Right answers, from the first request to the last.
    wrong
        Everything else that became of a request which was sent on an open connection.
    exit_codes
        How many servers ended with which code.
    slowest_s
        The longest time from SIGTERM to the end of the process.
    """

    drains: int
    clients: int
    answered: int
    wrong: dict[str, int]
    exit_codes: dict[int, int]
    slowest_s: float

    @property
    def faults(self) -> tuple[str, ...]:
        """What should not have happened."""
        exits = {f"exit code {code}": n for code, n in self.exit_codes.items() if code != 0}
        return tuple(f"{n} times: {what}" for what, n in {**self.wrong, **exits}.items())

    def __str__(self) -> str:
        return (
            f"{self.drains} drains under the load of {self.clients} connections: "
            f"{self.answered} right answers, {sum(self.wrong.values())} lost or wrong, exit codes "
            f"{', '.join(f'{code} ({n} times)' for code, n in self.exit_codes.items())}; "
            f"the longest took {self.slowest_s:.2f} s"
        )


@dataclass(frozen=True)
class _Order:
    """Whom to load, and whom to stop after how long."""

    host: str
    port: int
    pid: int
    seconds: float


def measure(drains: int = 20) -> Figures:
    """Stop so many servers, each under the load of clients that go on until they are refused."""
    outcomes: Counter[str] = Counter()
    exits: Counter[int] = Counter()
    seconds = []
    draw = random.Random(0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        for _ in range(drains):
            with server.service() as ours:
                ours.wait_until_ready()
                order = _Order(ours.host, ours.port, ours.process.pid, 0.5 + draw.random())
                load = executor.submit(_load, order)
                exits[ours.process.wait()] += 1
                ended = time.monotonic()
                found, stopped = load.result()
                outcomes += found
                seconds.append(ended - stopped)
    answered = outcomes.pop(RIGHT, 0)
    outcomes.pop(REFUSED, None)
    return Figures(drains, CONNECTIONS, answered, dict(outcomes), dict(exits), max(seconds))


def _load(order: _Order) -> tuple[Counter[str], float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load_and_stop(order))


async def _load_and_stop(order: _Order) -> tuple[Counter[str], float]:
    """Return what became of the requests, and when the signal was sent."""
    problem = problems.draw(OP, ROWS, SEGMENTS)
    message = request(f"/v1/{OP}", problem.pack())
    async with Connection(order.host, order.port) as connection:
        first = (await connection.exchange(message)).body
    wrong = problems.difference(problems.unpack(first), problem.expected(), problem.dtype, ROWS)
    outcomes = Counter({wrong: 1} if wrong else {})
    clients = [
        asyncio.create_task(_client(order, message, first, outcomes)) for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(order.seconds)
    stopped = time.monotonic()
    os.kill(order.pid, signal.SIGTERM)
    await asyncio.gather(*clients)
    return outcomes, stopped


async def _client(order: _Order, message: bytes, right: bytes, outcomes: Counter[str]) -> None:
    """Send one request after the other until no connection can be had."""
    connection = Connection(order.host, order.port)
    while (outcome := await _outcome(connection, message, right)) != REFUSED:
        outcomes[outcome] += 1


async def _outcome(connection: Connection, message: bytes, right: bytes) -> str:
    try:
        is_new = await connection.open()
    except OSError:
        return REFUSED
    try:
        answer = await asyncio.wait_for(connection.exchange(message), _PATIENCE_SECONDS)
    except TimeoutError:
        return f"no answer within {_PATIENCE_SECONDS} s"
    except LostAnswerError as error:
        return f"lost on a {'new' if is_new else 'kept'} connection: {error}"
    if answer.status != 200:
        return f"status {answer.status}"
    return RIGHT if answer.body == right else "another answer than before"
