"""Compiled functions: one compilation for all who ask, a bounded cache, and faults that pass."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import jax
import pytest

import segops
from segops_service import batches
from segops_service.functions import Function, Functions, Signature
from tests.service.calls import FORMS, library
from tests.service.helpers import WANTS, assert_bits_equal, case


class Heard:
    """Observer that keeps what it hears."""

    def __init__(self) -> None:
        self.compilations: list[float] = []

    def launched(self, requests: int, rows: int, seconds: float) -> None:
        raise AssertionError((requests, rows, seconds))

    def compiled(self, seconds: float) -> None:
        self.compilations.append(seconds)


@pytest.fixture(scope="module", autouse=True)
def x64_as_in_an_engine(x64: None) -> None:  # noqa: ARG001 - which undoes it
    jax.config.update("jax_enable_x64", True)


def _signature(rows: int = 20, op: str = "segmented_sum", *want: str, form: int = -1) -> Signature:
    call = case(op, form=form).call(*want)
    return Signature(call.kind, rows, 7, False, jax.devices("cpu")[0])


def _using(
    capacity: int, use: Callable[[Functions], Coroutine[Any, Any, Any]], observer: Any = None
) -> Functions:
    """Use functions on a loop, and close them; no task may be left."""
    functions = Functions(capacity)
    functions.observer = observer

    async def run() -> None:
        await use(functions)
        await functions.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    return functions


async def _compiled(functions: Functions, *rows: int) -> None:
    for count in rows:
        await functions.compile(_signature(count))


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_a_function_computes_what_its_signature_says(op: str, form: int) -> None:
    drawn = case(op, rows=20, form=form)
    call = drawn.call(*WANTS)
    found: list[Function] = []

    async def use(functions: Functions) -> None:
        function, seconds = await functions.compile(_signature(25, op, *WANTS, form=form))
        assert seconds > 0
        found.append(function)

    _using(1, use)
    results = jax.device_get(found[0](*batches.assemble([call], 25, 7)))
    assert_bits_equal(batches.split(results, [call])[0], library(call))


def test_all_who_ask_at_once_share_one_compilation() -> None:
    heard = Heard()

    async def use(functions: Functions) -> None:
        answers = await asyncio.gather(*(functions.compile(_signature()) for _ in range(20)))
        assert len({id(function) for function, _ in answers}) == 1
        assert functions.find(_signature()) is answers[0][0]

    cache = _using(9, use, heard).snapshot()
    assert (cache.misses, cache.hits, cache.entries, cache.evictions) == (1, 1, 1, 0)
    assert [cache.compile_seconds] == heard.compilations


def test_one_who_gives_up_does_not_take_it_from_the_others() -> None:
    async def use(functions: Functions) -> None:
        first, second = functions.compile(_signature()), functions.compile(_signature())
        first.cancel()
        function, _ = await second
        assert functions.find(_signature()) is function

    assert _using(9, use).snapshot().misses == 1


def test_the_least_recently_used_function_goes_first() -> None:
    async def use(functions: Functions) -> None:
        await _compiled(functions, 1, 2)
        assert functions.find(_signature(1))
        await _compiled(functions, 3)
        assert functions.find(_signature(2)) is None
        assert functions.find(_signature(1))
        assert functions.find(_signature(3))

    cache = _using(2, use).snapshot()
    assert (cache.entries, cache.capacity, cache.evictions) == (2, 2, 1)
    assert (cache.hits, cache.misses) == (3, 3)


def test_the_cache_never_grows_beyond_its_capacity() -> None:
    async def use(functions: Functions) -> None:
        await asyncio.gather(*(functions.compile(_signature(rows)) for rows in range(1, 9)))
        assert functions.snapshot().entries == 3

    cache = _using(3, use).snapshot()
    assert (cache.misses, cache.evictions) == (8, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 21},
        {"segments": 8},
        {"is_sorted": True},
        {"device": 1},
        {"kind": {"op": "segmented_mean"}},
        {"kind": {"ndim": 1}},
        {"kind": {"dtype": "float64"}},
        {"kind": {"want": ("value", "vjp")}},
        {"kind": {"want": ("vjp",), "has_cotangent": True}},
        {"kind": {"want": ("jvp",), "tangents": ("x",)}},
    ],
    ids=str,
)
def test_each_part_of_the_signature_has_its_own_function(change: dict[str, Any]) -> None:
    signature = _signature()
    if "device" in change:
        change = {"device": jax.devices("cpu")[1]}
    if "kind" in change:
        change = {"kind": signature.kind._replace(**change["kind"])}
    other = signature._replace(**change)

    async def use(functions: Functions) -> None:
        one, _ = await functions.compile(signature)
        assert functions.find(other) is None
        two, _ = await functions.compile(other)
        assert (functions.find(signature), functions.find(other)) == (one, two)

    _using(9, use)


def test_a_function_that_cannot_be_compiled_fails_those_who_asked_and_no_other() -> None:
    heard = Heard()
    wrong = _signature(2**31)

    async def use(functions: Functions) -> None:
        asked = [
            functions.compile(wrong),
            functions.compile(wrong),
            functions.compile(_signature()),
        ]
        one, two, good = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(one, segops.ArgumentValueError)
        assert two is one
        assert not isinstance(good, BaseException)
        assert functions.find(wrong) is None
        with pytest.raises(segops.ArgumentValueError):
            await functions.compile(wrong)

    cache = _using(9, use, heard).snapshot()
    assert (cache.entries, cache.misses, len(heard.compilations)) == (1, 3, 1)


def test_closing_ends_what_is_compiled_and_drops_what_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(functions: Functions) -> None:
        going, waiting = (functions.compile(_signature(rows)) for rows in (1, 2))
        await asyncio.sleep(0.005)
        going.cancel()
        waiting.cancel()

    before = threading.active_count()
    _using(9, use)
    assert threading.active_count() == before
    assert not caplog.records


def test_the_numbers_of_a_new_cache_are_zero() -> None:
    cache = Functions(5).snapshot()
    assert (cache.entries, cache.hits, cache.misses, cache.evictions) == (0, 0, 0, 0)
    assert (cache.capacity, cache.compile_seconds) == (5, 0)


def test_compiling_does_not_stop_the_loop() -> None:
    async def use(functions: Functions) -> None:
        beats = 0
        compiled = functions.compile(_signature(20, "segmented_rms_norm", *WANTS))
        while not compiled.done():
            await asyncio.sleep(0.001)
            beats += 1
        await compiled
        assert beats > 2

    _using(9, use)
