"""The load generator: keep-alive connections that repeat requests, in a process of its own."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import get_context
from typing import cast

import numpy as np
import uvloop

from benchmarks.service.connection import parse_head
from benchmarks.service.server import Server

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Order:
    """What to send where: every connection goes through the requests in turn."""

    host: str
    port: int
    requests: Sequence[bytes]
    connections: int
    seconds: float


@dataclass
class Load:
    """What came of it.

    Attributes
    ----------
    latencies
        Seconds from the first byte sent to the last one received, in order of completion.
    statuses
        Number of answers by status.
    first
        The body of the first answer to each request, by its position.
    changed
        Answers that were not the bytes of the first answer to the same request.
    lost
        Connections that ended without an answer.
    cpu
        Share of one core that the generator itself took.
    """

    seconds: float = 0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    first: dict[int, bytes] = field(default_factory=dict)
    changed: int = 0
    lost: int = 0
    cpu: float = 0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    def quantile(self, q: float) -> float:
        """Latency that a share ``q`` of the answers stayed under, in seconds."""
        return float(np.quantile(self.latencies, q))


class Generator:
    """Puts load on servers from a process that does nothing else."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def run(
        self, server: Server, requests: Sequence[bytes], connections: int, seconds: float
    ) -> Load:
        """Send the requests over so many connections for so long."""
        order = Order(server.host, server.port, requests, connections, seconds)
        return self._executor.submit(generate, order).result()


@contextmanager
def generator() -> Iterator[Generator]:
    """Keep a process for the load until the context ends."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield Generator(executor)


def generate(order: Order) -> Load:
    """Put on load from this process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(put_on(order))


async def put_on(order: Order) -> Load:
    """Put on load from the running loop."""
    load = Load()
    clients = [await _connect(order, load, offset) for offset in range(order.connections)]
    began, cpu = time.perf_counter(), time.process_time()
    for client in clients:
        client.start()
    await asyncio.sleep(order.seconds)
    for client in clients:
        client.is_stopping = True
    await asyncio.gather(*(client.ended for client in clients))
    load.seconds = time.perf_counter() - began
    load.cpu = (time.process_time() - cpu) / load.seconds
    return load


async def _connect(order: Order, load: Load, offset: int) -> "_Client":
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: _Client(order.requests, load, offset), order.host, order.port
    )
    return client


class _Client(asyncio.Protocol):
    """One connection: sends a request when the answer to the one before is complete."""

    def __init__(self, requests: Sequence[bytes], load: Load, offset: int) -> None:
        self.is_stopping = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load = load
        self._turns = cycle(range(len(requests)))
        self._requests = requests
        for _ in range(offset % len(requests)):
            next(self._turns)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        """Send the next request."""
        self._turn = next(self._turns)
        self._received = bytearray()
        self._length = -1
        self._began = time.perf_counter()
        self._transport.write(self._requests[self._turn])

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._length < 0 and (end := self._received.find(_HEAD_END)) >= 0:
            self._head = parse_head(bytes(self._received[:end]))
            self._body_at = end + len(_HEAD_END)
            self._length = self._body_at + int(self._head.headers["content-length"])
        if len(self._received) == self._length:
            self._complete()

    def _complete(self) -> None:
        load = self._load
        load.latencies.append(time.perf_counter() - self._began)
        load.statuses[self._head.status] += 1
        body = self._received[self._body_at :]
        if self._turn not in load.first:
            load.first[self._turn] = bytes(body)
        load.changed += body != load.first[self._turn]
        if self.is_stopping:
            self._transport.close()
        else:
            self.start()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - an interface
        self._load.lost += not self.is_stopping or len(self._received) != self._length
        self.ended.set_result(None)
