"""The engine by itself: cache, faults, memory, platform and shutdown."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import segops
from segops_service import Engine
from segops_service.calls import Call
from segops_service.engine import find_device
from segops_service.errors import NotReadyError
from segops_service.operations import OPERATIONS
from tests.service.helpers import WANTS, assert_bits_equal, case


def _call(
    rows: int = 4, segments: int = 2, op: str = "segmented_sum", want: tuple[str, ...] = ("value",)
) -> Call:
    drawn = case(op, rows=rows, segments=segments)
    return Call(
        op, drawn.operands, drawn.idx, segments, False, want, drawn.cotangent, drawn.tangents
    )


def _compute(engine: Engine, call: Call) -> Any:
    return asyncio.run(engine.compute(call))


def test_a_repeated_signature_compiles_nothing(engine: Engine) -> None:
    first = _compute(engine, _call(rows=17))
    before = engine.compiled.cache_info()
    assert_bits_equal(_compute(engine, _call(rows=17)), first)
    after = engine.compiled.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


@pytest.mark.parametrize(
    "change",
    [
        {"num_segments": 3},
        {"indices_are_sorted": True},
        {"want": ("value", "vjp")},
        {"idx": np.zeros(4, np.int32)},
        {"tangents": {}},
        {"cotangent": None},
        {"operands": {"x": np.ones((4, 3))}},
        {"op": "segmented_mean"},
    ],
    ids=str,
)
def test_each_part_of_the_signature_has_its_own_function(
    engine: Engine, change: dict[str, Any]
) -> None:
    call = replace(_call(), cotangent=np.ones((2, 3), np.float32))
    _compute(engine, call)
    before = engine.compiled.cache_info().misses
    changed = replace(call, **change)
    if "num_segments" in change:
        changed = replace(changed, cotangent=np.ones((3, 3), np.float32))
    _compute(engine, changed)
    assert engine.compiled.cache_info().misses == before + 1


def test_the_cache_is_bounded_and_drops_the_least_recently_used() -> None:
    engine = Engine("cpu", cache_size=2)
    engine.start().result()
    for rows in (1, 2, 1, 3):
        _compute(engine, _call(rows=rows))
    before = engine.compiled.cache_info()
    assert (before.currsize, before.maxsize) == (2, 2)
    _compute(engine, _call(rows=1))
    assert engine.compiled.cache_info().misses == before.misses
    _compute(engine, _call(rows=2))
    assert engine.compiled.cache_info().misses == before.misses + 1
    engine.stop()


def test_a_fault_stays_with_its_call_and_the_next_one_works(engine: Engine) -> None:
    expected = _compute(engine, _call())
    wrong = replace(_call(), operands={"x": np.ones((4, 2), np.float32)})
    with pytest.raises(segops.ArgumentError):
        _compute(engine, wrong)
    with pytest.raises(KeyError):
        _compute(engine, replace(_call(), op="segmented_nothing"))
    assert_bits_equal(_compute(engine, _call()), expected)


def test_two_calls_at_once_both_get_their_own_answer(engine: Engine) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(*(engine.compute(_call(rows=rows)) for rows in (5, 6)))

    for rows, answer in zip((5, 6), asyncio.run(both()), strict=True):
        assert_bits_equal(answer, _compute(engine, _call(rows=rows)))


@pytest.mark.parametrize("op", OPERATIONS)
def test_arrays_at_any_address_give_the_same_bits(engine: Engine, op: str) -> None:
    call = _call(rows=50, segments=7, op=op, want=WANTS)
    expected = _compute(engine, call)
    for offset in (1, 2, 3, 4, 8, 17, 63):
        operands = {name: _at(offset, array) for name, array in call.operands.items()}
        moved = replace(call, operands=operands, idx=_at(offset, call.idx))
        assert_bits_equal(_compute(engine, moved), expected)


def _at(offset: int, array: np.ndarray) -> np.ndarray:
    """Read-only copy that starts ``offset`` bytes behind a 64-byte boundary."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    room[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    view = np.ndarray(array.shape, array.dtype, room.data, start)
    view.flags.writeable = False
    assert view.ctypes.data % 64 == offset
    return view


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_callers_arrays_are_only_read(engine: Engine, op: str) -> None:
    call = _call(rows=4000, segments=7, op=op, want=WANTS)
    before = {name: array.copy() for name, array in call.operands.items()}
    _compute(engine, call)
    assert_bits_equal(call.operands, before)


def test_nothing_is_computed_before_the_start_and_after_the_stop() -> None:
    engine = Engine("cpu")
    with pytest.raises(NotReadyError, match="set up"):
        _compute(engine, _call())
    engine.start().result()
    _compute(engine, _call())
    engine.stop()
    with pytest.raises(NotReadyError, match="shutting down"):
        _compute(engine, _call())


def test_a_stop_finishes_what_was_taken() -> None:
    engine = Engine("cpu")
    engine.start().result()
    taken = threading.Barrier(2)

    async def burst() -> list[Any]:
        tasks = [asyncio.ensure_future(engine.compute(_call(rows=rows))) for rows in range(1, 9)]
        await asyncio.sleep(0)
        taken.wait()
        return await asyncio.gather(*tasks)

    with ThreadPoolExecutor() as pool:
        answers = pool.submit(asyncio.run, burst())
        taken.wait()
        engine.stop()
        assert len(answers.result()) == 8


def test_a_missing_gpu_is_never_replaced_by_the_cpu() -> None:
    if _has_cuda():
        pytest.skip("this machine has a GPU")
    engine = Engine("cuda")
    engine.start().result()
    assert engine.device is None
    assert "cuda" in (engine.obstacle or "")
    with pytest.raises(NotReadyError, match="cuda"):
        _compute(engine, _call())
    engine.stop()


def _has_cuda() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def test_the_cpu_is_taken_when_it_was_asked_for() -> None:
    assert find_device("cpu").platform == "cpu"
    assert find_device("auto") == jax.devices()[0]
