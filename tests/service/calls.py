"""Calls for tests of the engine: what the library gives for them, and arrays that misbehave."""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import segops
from segops_service import engine as engine_module
from segops_service.calls import Call
from segops_service.exchange import Exchange
from segops_service.operations import OPERATIONS
from tests.service.helpers import Array, Running, running

FORMS = [(op, form) for op, operation in OPERATIONS.items() for form in range(len(operation.forms))]
IDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def library(call: Call, *, is_sorted: bool = False) -> dict[str, Any]:
    """Answer of the library for exactly these arrays, which nothing was added to."""
    names = tuple(call.operands)

    @jax.jit
    def compute(operands: Any, idx: Any, cotangent: Any, tangents: Any) -> dict[str, Any]:
        args = (call.op, *operands, idx, call.num_segments)
        along = dict(zip(call.tangents, tangents, strict=True))
        options = {"indices_are_sorted": is_sorted}
        value, vjp = segops.value_and_vjp(*args, cotangent=cotangent, **options)
        answer = {"value": value, "vjp": vjp}
        if {"jvp", "hvp"} & {*call.want}:
            answer["jvp"] = segops.jvp(*args, tangents=along, **options)
            answer["hvp"] = segops.hvp(*args, tangents=along, cotangent=cotangent, **options)
        return {want: answer[want] for want in call.want}

    operands = tuple(call.operands[name] for name in names)
    return compute(operands, call.idx, call.cotangent, tuple(call.tangents.values()))


def at(offset: int, array: Array) -> Array:
    """Read-only copy of an array that starts ``offset`` bytes behind a 64-byte boundary."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    room[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    view: Array = np.ndarray(array.shape, array.dtype, room.data, start)
    view.flags.writeable = False
    assert view.ctypes.data % 64 == offset
    return view


def changed(call: Call, change: Callable[[Array], Array]) -> Call:
    """Call with every array replaced by what a function makes of it."""
    return replace(
        call,
        operands={name: change(array) for name, array in call.operands.items()},
        tangents={name: change(array) for name, array in call.tangents.items()},
        cotangent=None if call.cotangent is None else change(call.cotangent),
        idx=change(call.idx),
    )


class Acting(np.ndarray[Any, Any]):
    """An array that does something when a worker first touches it."""

    act: Callable[[], object]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self.act()
        plain = [np.asarray(array) for array in args[0]]
        return function(plain, *args[1:], **kwargs)


def acting(call: Call, act: Callable[[], object]) -> Call:
    """Call whose worker calls a function before it computes."""
    (name, array), *others = call.operands.items()
    array = array.view(Acting)
    array.act = act
    return replace(call, operands={name: array, **dict(others)})


class Gate:
    """Holds a worker between the start of a call and the moment it is opened."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def hold(self) -> None:
        """Stop here until the gate is opened."""
        self._reached.set()
        assert self._opened.wait(60)

    def wait(self) -> None:
        """Wait until somebody is held."""
        assert self._reached.wait(60)

    def open(self) -> None:
        """Let go."""
        self._opened.set()


def raising(error: BaseException) -> Callable[[], object]:
    """Make a function that raises."""

    def act() -> object:
        raise error

    return act


@contextmanager
def engine_on(devices: int, **settings: Any) -> Iterator[Running]:
    """Run an engine on the first few of this process's devices."""
    found = jax.devices("cpu")[:devices]
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # and not while others are started
            patch.setattr(engine_module, "find_devices", lambda _: found)
            engine = stack.enter_context(running(**settings))
        yield engine


class Submitted:
    """Calls given to an engine, and what became of them, in the order in which it did."""

    def __init__(self, engine: Running) -> None:
        self._engine = engine.engine
        self.futures: list[asyncio.Future[Any]] = []
        self.done: list[str] = []
        self.exchanges: dict[str, Exchange] = {}

    def add(self, name: str, call: Call) -> "asyncio.Future[Any]":
        """Submit a call; on the engine's loop alone."""
        self.exchanges[name] = Exchange(name)
        future = self._engine.submit(call, self.exchanges[name])
        future.add_done_callback(lambda _: self.done.append(name))
        self.futures.append(future)
        return future

    def batches(self) -> dict[str, int]:
        """How many calls shared the launch of each."""
        return {name: exchange.batch for name, exchange in self.exchanges.items()}


class SlowCompiler:
    """An engine whose compiler is held, so that cold calls wait."""

    def __init__(self, engine: Running) -> None:
        self._compiler = engine.engine._functions._compiler
        self._gate = Gate()

    async def __aenter__(self) -> "SlowCompiler":
        self._compiler.submit(self._gate.hold)
        await asyncio.to_thread(self._gate.wait)
        return self

    def open(self) -> None:
        """Let it compile."""
        self._gate.open()

    async def __aexit__(self, *_: object) -> None:
        self.open()


def kill(engine: Running, place: int = 0) -> None:
    """Have a worker's thread raise SystemExit at its next step."""
    thread = engine.engine._scheduler.workers[place]._thread
    assert thread.ident is not None
    found = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert found == 1


def wait_until_ready(engine: Running) -> None:
    """Wait until every worker of an engine lives."""
    deadline = time.monotonic() + 30
    while engine.engine.obstacle is not None:
        assert time.monotonic() < deadline, engine.engine.obstacle
        time.sleep(0.002)
