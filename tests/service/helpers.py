"""Running servers, requests in msgpack, and the six operations as NumPy float64 formulas."""

import asyncio
import gc
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import uvloop

from segops_client import wire
from segops_service import Engine, Settings, create_app
from segops_service.calls import Call
from segops_service.exchange import Exchange
from segops_service.operations import OPERATIONS, fill
from segops_service.server import Server

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

MSGPACK = {"content-type": wire.MEDIA_TYPE}
JSON = {"content-type": "application/json"}
WANTS = ("value", "vjp", "jvp", "hvp")


@dataclass
class Running:
    """An engine on an event loop of its own, in a thread."""

    engine: Engine
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def compute(self, *calls: Call) -> list[Any]:
        """Submit calls at the same moment; return their answers, or what was raised."""

        async def gather() -> list[Any]:
            futures = [self.engine.submit(call, Exchange("")) for call in calls]
            return await asyncio.gather(*futures, return_exceptions=True)

        return self.run(gather())

    def answer(self, call: Call) -> Any:
        """Return the answer of one call, or raise."""
        (answer,) = self.compute(call)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@contextmanager
def running(**settings: Any) -> Iterator[Running]:
    """Run an engine that is ready, with some settings, and stop it at the end.

    It must leave no task behind, and no error that nobody looked at.
    """
    loop = uvloop.new_event_loop()  # as the server has it
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = Running(Engine(Settings(**{"platform": "cpu", **settings})), loop)
    try:
        running.run(running.engine.start())
        running.run(running.engine.wait_until_set_up())
        yield running
        running.run(running.engine.stop())
        assert running.run(_tasks_left()) == set()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    gc.collect()
    assert not faults


async def _tasks_left() -> set[str]:
    await asyncio.sleep(0)  # what was cancelled ends now
    return {repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}


@contextmanager
def serving(settings: Settings) -> Iterator[httpx.Client]:
    """Serve an application, ready, on a free port of this process."""
    settings = settings.model_copy(update={"port": 0, "platform": "cpu"})
    engine = Engine(settings)
    app = create_app(settings, engine)
    server = Server(app, settings, engine.drain, app.metrics.refused)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not server.started or engine.obstacle is not None:
            assert time.monotonic() < deadline, engine.obstacle
            time.sleep(0.005)
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@dataclass
class Process:
    """A server in a process of its own."""

    popen: subprocess.Popen[str]
    client: httpx.Client
    log: list[str]
    variables: dict[str, str]

    def wait_until_ready(self) -> None:
        """Wait for the first computation of the device."""
        deadline = time.monotonic() + 120
        while self.client.get("/v1/health/ready").status_code != 200:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def limit_memory(self, more: int) -> None:
        """Let the process take only so many bytes more than it has."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        found = re.search(r"VmSize:\s+(\d+) kB", status)
        assert found is not None
        limit = int(found[1]) * 1024 + more
        resource.prlimit(self.popen.pid, resource.RLIMIT_AS, (limit, limit))


@contextmanager
def process(**variables: str) -> Iterator[Process]:
    """Run ``segops-service serve`` with settings from the environment, stopped at the end."""
    popen = subprocess.Popen(
        [sys.executable, "-m", "segops_service", "serve", "--port", "0"],
        env={**os.environ, "SEGOPS_PLATFORM": "cpu", **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert popen.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=log.extend, args=(popen.stderr,))
    try:
        address = _address(popen.stderr, log)
        reader.start()
        with httpx.Client(base_url=address, timeout=120) as client:
            yield Process(popen, client, log, variables)
    finally:
        popen.terminate()
        popen.wait(60)
        if reader.is_alive():
            reader.join()
        popen.stderr.close()


def _address(lines: Iterable[str], log: list[str]) -> str:
    """Read a log up to the line that says where the server listens."""
    for line in lines:
        log.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("".join(log))


def post(client: httpx.Client, op: str, **fields: Any) -> dict[str, Any]:
    """Send a msgpack request that must succeed, and decode its answer."""
    response = client.post(f"/v1/{op}", content=wire.packb(fields), headers=MSGPACK)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == wire.MEDIA_TYPE
    answer: dict[str, Any] = wire.unpackb(response.content)
    return answer


def problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """Check that a response is the problem document of one kind, and decode it."""
    assert response.headers["content-type"] == "application/problem+json", response.content
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["status"]) == (status, status), document
    assert document["type"] == f"urn:segops:problem:{slug}", document
    assert document["title"]
    assert document["detail"]
    return document


def refused(client: httpx.Client, op: str, field: str | None, **fields: Any) -> dict[str, Any]:
    """Send a msgpack request that must be refused as an invalid argument of that name."""
    response = client.post(f"/v1/{op}", content=wire.packb(fields), headers=MSGPACK)
    document = problem(response, 422, "invalid-argument")
    assert document.get("field") == field, document
    return document


@dataclass
class Case:
    """Arguments of one operation, with a cotangent and a tangent for each operand."""

    op: str
    operands: Arrays
    idx: Array
    num_segments: int
    cotangent: Array
    tangents: Arrays

    @property
    def fields(self) -> dict[str, Any]:
        """Body of a request for the value alone."""
        return {**self.operands, "idx": self.idx, "num_segments": self.num_segments}

    def call(self, *want: str, **changes: Any) -> Call:
        """Call of the engine, with cotangent and tangents where they are of use."""
        want = want or ("value",)
        call = Call(
            self.op,
            self.operands,
            self.idx,
            self.num_segments,
            want,
            self.cotangent if {"vjp", "hvp"} & {*want} else None,
            self.tangents if {"jvp", "hvp"} & {*want} else {},
            ids_in_range=True,
        )
        return replace(call, **changes)

    @property
    def all_fields(self) -> dict[str, Any]:
        """Body of a request with cotangent and tangents."""
        return {**self.fields, "cotangent": self.cotangent, "tangents": self.tangents}


def case(
    op: str,
    dtype: str = "float32",
    rows: int = 40,
    segments: int = 7,
    form: int = -1,
    seed: int = 0,
) -> Case:
    """Draw arguments from a seed: shuffled ids, with the last segment left empty."""
    rng = np.random.default_rng(seed)
    layouts = OPERATIONS[op].forms[form]

    def draw(layout: tuple[str | int, ...]) -> Array:
        return rng.standard_normal(fill(layout, rows, segments)).astype(dtype)

    return Case(
        op,
        {name: draw(layout) for name, layout in layouts.operands.items()},
        rng.integers(0, max(segments - 1, 1), rows),
        segments,
        draw(layouts.value),
        {name: draw(layout) for name, layout in layouts.operands.items()},
    )


def oracle(case: Case) -> dict[str, Any]:
    """Value and derivatives of a case by formulas in NumPy float64."""
    wide = {name: array.astype(np.float64) for name, array in case.operands.items()}
    tangents = {name: array.astype(np.float64) for name, array in case.tangents.items()}
    segments = _Segments(case.idx, case.num_segments)
    return _FORMULAS[case.op](segments, wide, tangents, case.cotangent.astype(np.float64))


class _Segments:
    """Reduction and broadcast over ids, those out of range left out."""

    def __init__(self, idx: Array, num_segments: int) -> None:
        ids = [int(i) for i in idx]
        self.rows = [row for row, i in enumerate(ids) if 0 <= i < num_segments]
        self.ids = [ids[row] for row in self.rows]
        self.length = len(ids)
        self.num_segments = num_segments

    def sum(self, rows: Array) -> Array:
        out = np.zeros((self.num_segments, *rows.shape[1:]))
        for row, i in zip(self.rows, self.ids, strict=True):
            out[i] += rows[row]
        return out

    def spread(self, values: Array) -> Array:
        out = np.zeros((self.length, *values.shape[1:]))
        for row, i in zip(self.rows, self.ids, strict=True):
            out[row] = values[i]
        return out

    @property
    def counts(self) -> Array:
        return self.sum(np.ones(self.length))


def _column(scalars: Array, like: Array) -> Array:
    return scalars.reshape(len(scalars), *[1] * (like.ndim - 1))


def _dot(a: Array, b: Array) -> Array:
    product: Array = (a * b).sum(1)
    return product


def _sum(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    return {
        "value": s.sum(u["x"]),
        "vjp": {"x": s.spread(g)},
        "jvp": s.sum(t["x"]),
        "hvp": {"x": np.zeros_like(u["x"])},
    }


def _mean(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    scale = _column(1 / np.maximum(s.counts, 1), g)
    plain = _sum(s, u, t, scale * g)
    return {**plain, "value": scale * plain["value"], "jvp": scale * plain["jvp"]}


def _pair(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    x, y, rows = u["x"], u["y"], s.spread(g)[:, None]
    return {
        "value": s.sum(_dot(x, y)),
        "vjp": {"x": rows * y, "y": rows * x},
        "jvp": s.sum(_dot(t["x"], y) + _dot(x, t["y"])),
        "hvp": {"x": rows * t["y"], "y": rows * t["x"]},
    }


def _rms_norm(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    x, count = u["x"], np.maximum(s.counts, 1)
    rms = np.sqrt(s.sum(_dot(x, x)) / count)
    inverse = np.divide(1, rms, out=np.zeros_like(rms), where=rms > 0)
    along = s.sum(_dot(x, t["x"]))
    first = s.spread(g * inverse / count)[:, None]
    second = s.spread(g * along * inverse**3 / count**2)[:, None]
    return {
        "value": rms,
        "vjp": {"x": first * x},
        "jvp": along * inverse / count,
        "hvp": {"x": first * t["x"] - second * x},
    }


def _mul(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    x, y, t_y = u["x"], s.spread(u["y"])[:, None], s.spread(t["y"])[:, None]
    return {
        "value": x * y,
        "vjp": {"x": g * y, "y": s.sum(_dot(g, x))},
        "jvp": t["x"] * y + x * t_y,
        "hvp": {"x": g * t_y, "y": s.sum(_dot(g, t["x"]))},
    }


def _matvec(s: _Segments, u: Arrays, t: Arrays, g: Array) -> dict[str, Any]:
    v, m, t_m = u["v"], s.spread(u["m"]), s.spread(t["m"])

    def times(vectors: Array, matrices: Array) -> Array:
        return (vectors[:, None, :] @ matrices)[:, 0]

    def outer(a: Array, b: Array) -> Array:
        return s.sum(a[:, :, None] * b[:, None, :])

    return {
        "value": times(v, m),
        "vjp": {"v": times(g, m.swapaxes(1, 2)), "m": outer(v, g)},
        "jvp": times(t["v"], m) + times(v, t_m),
        "hvp": {"v": times(g, t_m.swapaxes(1, 2)), "m": outer(t["v"], g)},
    }


_FORMULAS: Mapping[str, Callable[[_Segments, Arrays, Arrays, Array], dict[str, Any]]] = {
    "segmented_sum": _sum,
    "segmented_mean": _mean,
    "segmented_dot": _pair,
    "segmented_rms_norm": _rms_norm,
    "segmented_mul": _mul,
    "segmented_matvec": _matvec,
}


def leaves(answer: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    """All arrays of an answer with their dotted paths, in the order of the paths."""
    if isinstance(answer, Mapping):
        for name in sorted(answer):
            yield from leaves(answer[name], f"{path}.{name}".lstrip("."))
    else:
        yield path, np.asarray(answer)


def assert_bits_equal(actual: Any, expected: Any) -> None:
    """Check two answers for the same arrays: names, dtypes, shapes and every bit."""
    pairs = list(zip(leaves(actual), leaves(expected), strict=True))
    assert pairs
    for (path, a), (other, b) in pairs:
        assert (path, a.dtype, a.shape) == (other, b.dtype, b.shape)
        assert a.tobytes() == b.tobytes(), path


def assert_close(actual: Any, expected: Any, dtype: str) -> None:
    """Check an answer against the oracle's, to a few roundings of its dtype."""
    tolerance = {"float32": 2e-6, "float64": 1e-13}[dtype]
    pairs = list(zip(leaves(actual), leaves(expected), strict=True))
    assert pairs
    for (path, a), (other, b) in pairs:
        assert (path, a.shape, a.dtype) == (other, b.shape, np.dtype(dtype))
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0)), err_msg=path
        )
