"""Clients that hold on to a connection: they send, or read, next to nothing."""

import asyncio
import socket
import time

from benchmarks.service import problems
from benchmarks.service.connection import Answer, Connection, LostAnswerError, read_answer, request
from benchmarks.soak.clients import HELD, LOST
from benchmarks.soak.tally import Tally

HELD_SECONDS = 30.0
"""Longer than the service's own limits let anyone hold a slot."""

_PAUSE_SECONDS = 0.5
_SMALL_BUFFER = 2**16


async def send_slowly(host: str, port: int, part: str, tally: Tally, deadline: float) -> None:
    """Send a head, or the body behind a whole head, byte by byte; again and again.

    Parameters
    ----------
    host, port
        The server.
    part
        ``head`` or ``body``.
    tally
        Where outcomes are counted.
    deadline
        When to end, by ``time.monotonic``.
    """
    problem = problems.draw("segmented_sum", 100, 10)
    message = request("/v1/segmented_sum", problem.pack())
    quick = message.index(b"\r\n\r\n") + 4 if part == "body" else 0
    kind = f"slow {part}"
    while time.monotonic() < deadline:
        began = time.monotonic()
        try:
            outcome = await _drip(host, port, message[:quick], message[quick:], deadline)
        except OSError as error:
            tally.fault(kind, LOST, str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        if outcome is None:
            return
        if outcome == HELD:
            tally.fault(kind, HELD, f"{time.monotonic() - began:.0f} s")
        else:
            tally.count(kind, outcome)


async def _drip(host: str, port: int, quick: bytes, slow: bytes, deadline: float) -> str | None:
    """Return how it ended, None where the time was over first."""
    connection = Connection(host, port)
    reader, writer = await connection.streams()
    answer = asyncio.create_task(read_answer(reader))
    held_until = time.monotonic() + HELD_SECONDS
    writer.write(quick)
    try:
        for position in range(len(slow)):
            writer.write(slow[position : position + 1])
            done, _ = await asyncio.wait({answer}, timeout=_PAUSE_SECONDS)
            if done:
                return _outcome(answer)
            if time.monotonic() > deadline:
                return None
            if time.monotonic() > held_until:
                return HELD
        return HELD
    finally:
        answer.cancel()
        connection.close(at_once=True)


def _outcome(answer: asyncio.Task[Answer]) -> str:
    try:
        return str(answer.result().status)
    except LostAnswerError:
        return "closed"


async def read_slowly(host: str, port: int, tally: Tally, deadline: float) -> None:
    """Ask for more than the sockets buffer, read nothing for long, then see how much was sent."""
    wants = ("value", "vjp", "jvp", "hvp")
    problem = problems.draw("segmented_mul", 100_000, 1000, dtype="float64", want=wants)
    message = request("/v1/segmented_mul", problem.pack())
    while time.monotonic() + HELD_SECONDS < deadline:
        try:
            reader, writer = await asyncio.open_connection(sock=await _connect(host, port))
        except OSError as error:
            tally.fault("slow reader", LOST, str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        writer.write(message)
        await asyncio.sleep(HELD_SECONDS)
        try:
            await asyncio.wait_for(read_answer(reader), HELD_SECONDS)
        except (LostAnswerError, TimeoutError):
            tally.count("slow reader", "cut off")
        else:
            tally.fault("slow reader", HELD, f"{HELD_SECONDS:.0f} s without reading")
        writer.close()


async def _connect(host: str, port: int) -> socket.socket:
    """Connect with a small buffer, so that what is not read stays with the server."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, (host, port))
    return own
