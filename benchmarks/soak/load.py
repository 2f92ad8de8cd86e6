"""The whole load, in a process of its own that gives way to the server."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe

import numpy as np
import uvloop

from benchmarks.soak import pool, slow
from benchmarks.soak.clients import Client
from benchmarks.soak.tally import Tally

_NICE = 5
"""Clients elsewhere would take no time of the server's cores."""


@dataclass(frozen=True)
class Order:
    """What to put on which server."""

    host: str
    port: int
    seconds: float
    clients: int
    cases: int
    seed: int


class Load:
    """The process; `tally` waits for its end."""

    def __init__(self, order: Order) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_main, args=(order, other))
        self._process.start()
        other.close()

    def wait_until_prepared(self) -> None:
        """Wait until the requests and their expected answers are there and the load begins."""
        self._pipe.recv()

    def has_ended(self, within: float) -> bool:
        """Wait for so many seconds; return whether the load has ended."""
        return self._pipe.poll(within)

    def tally(self) -> Tally:
        """Return what became of the requests."""
        tally: Tally = self._pipe.recv()
        return tally

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


@contextmanager
def running(order: Order) -> Iterator[Load]:
    """Put on a load until the context ends."""
    load = Load(order)
    try:
        yield load
    finally:
        load.close()


def _main(order: Order, pipe: "Pipe[object, object]") -> None:
    os.nice(_NICE)
    cases = pool.draw(order.cases, order.seed)
    pipe.send("prepared")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(run(order, cases)))


async def run(order: Order, cases: list[pool.Case]) -> Tally:
    """Run all clients until the time is over."""
    tally = Tally(began=time.monotonic())
    deadline = tally.began + order.seconds
    where = order.host, order.port
    rngs = np.random.default_rng(order.seed).spawn(order.clients)
    await asyncio.gather(
        *(Client(*where, cases, tally, rng).run(deadline) for rng in rngs),
        slow.send_slowly(*where, "head", tally, deadline),
        slow.send_slowly(*where, "body", tally, deadline),
        slow.read_slowly(*where, tally, deadline),
    )
    tally.ended = time.monotonic()
    return tally
