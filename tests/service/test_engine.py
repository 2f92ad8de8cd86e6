"""The engine by itself: bits that nothing changes, warm-up, drain and stop, memory and platform."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segops_service import Engine, Settings
from segops_service.calls import Call
from segops_service.engine import find_devices
from segops_service.errors import NotReadyError
from segops_service.operations import OPERATIONS
from segops_service.validation import validate
from tests.service.calls import (
    FORMS,
    IDS,
    Submitted,
    at,
    changed,
    engine_on,
    library,
)
from tests.service.helpers import WANTS, Array, Running, assert_bits_equal, case, running

SUM, MEAN = "segmented_sum", "segmented_mean"

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, 1e-40, 1e38, -1e300])


def _spoiled(array: Array, rng: np.random.Generator, part: float) -> Array:
    """Copy in which a part of the numbers is special."""
    with np.errstate(over="ignore"):
        special = rng.choice(SPECIAL, array.shape).astype(array.dtype)
    return np.where(rng.random(array.shape) < part, special, array)


def _drawn(kind: tuple[Any, ...], rows: int, segments: int, seed: int, wildness: int = 0) -> Call:
    """Call of a kind; the wilder, the more special numbers and the more ids out of range."""
    (op, form), dtype, want, has_cotangent, tangents = kind
    rng = np.random.default_rng([seed, rows, segments])
    drawn = case(op, dtype, rows=rows, segments=segments, form=form, seed=seed)
    call = drawn.call(*want)
    if wildness:
        part = (0.0, 0.02, 0.5)[wildness]
        call = changed(
            call, lambda array: _spoiled(array, rng, part) if array.dtype.kind == "f" else array
        )
    id_dtype = np.dtype(IDS[seed % len(IDS)])
    limits = np.iinfo(id_dtype)
    if wildness or not segments:
        ids = rng.integers(-2, segments + 3, rows)
        ids[rng.random(rows) < 0.1] = limits.max if limits.max < 2**63 else 2**62
    else:
        ids = rng.integers(0, segments, rows)
    ids = ids.clip(max(limits.min, -(2**62)), min(limits.max, 2**62)).astype(id_dtype)
    if id_dtype == np.uint64 and wildness:
        ids[ids > 2**61] = 2**64 - 1
    return replace(
        call,
        idx=ids,
        ids_in_range=bool(((ids >= 0) & (ids < segments)).all()),
        cotangent=call.cotangent if has_cotangent else None,
        tangents={name: array for name, array in call.tangents.items() if name in tangents},
    )


@st.composite
def kinds(draw: st.DrawFn) -> tuple[Any, ...]:
    """Everything about a call but its sizes and numbers."""
    form = draw(st.sampled_from(FORMS))
    want = draw(st.lists(st.sampled_from(WANTS), min_size=1, unique=True))
    operands = OPERATIONS[form[0]].operands
    needs_tangents = {"jvp", "hvp"} & {*want}
    return (
        form,
        draw(st.sampled_from(["float32", "float64"])),
        tuple(name for name in WANTS if name in want),
        bool({"vjp", "hvp"} & {*want}) and draw(st.booleans()),
        tuple(draw(st.sets(st.sampled_from(operands))) if needs_tangents else ()),
    )


sizes = st.tuples(
    st.sampled_from([0, 1, 2, 3, 17, 64, 333, 5000]), st.sampled_from([0, 1, 2, 7, 50, 130, 4000])
)
members = st.tuples(sizes, st.integers(0, 2**16), st.integers(0, 2))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kinds(), st.lists(members, min_size=1, max_size=6), st.data())
def test_no_companion_and_no_padding_changes_a_bit(
    engine: Running, kind: tuple[Any, ...], drawn: list[Any], data: st.DataObject
) -> None:
    calls = [_drawn(kind, *size, seed, wildness) for size, seed, wildness in drawn]
    answers = engine.compute(*calls)
    chosen = data.draw(st.integers(0, len(calls) - 1))
    assert_bits_equal(answers[chosen], library(calls[chosen]))
    for call, answer in zip(calls, answers, strict=True):
        assert_bits_equal(answer, engine.answer(call))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_every_operation_in_a_batch_has_the_bits_of_the_library(
    engine: Running, op: str, form: int, dtype: str
) -> None:
    kind = ((op, form), dtype, WANTS, True, OPERATIONS[op].operands)
    shapes = [(40, 7), (0, 5), (300, 60), (9, 0)]
    calls = [
        _drawn(kind, *shape, seed=seed, wildness=seed % 3) for seed, shape in enumerate(shapes)
    ]
    for call, answer in zip(calls, engine.compute(*calls), strict=True):
        assert_bits_equal(answer, library(call))


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_each_want_alone_has_the_bits_of_the_library(
    engine: Running, op: str, form: int, want: str
) -> None:
    drawn = case(op, rows=100, form=form).call(want)
    assert_bits_equal(engine.answer(drawn), library(drawn))


@pytest.fixture(scope="module")
def small_launches() -> Iterator[Running]:
    """An engine to which calls of over fifty rows are large."""
    with engine_on(1, batch_rows=50) as engine:
        yield engine


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "form"), FORMS)
def test_large_calls_whose_ids_ascend_have_the_bits_of_the_library(
    small_launches: Running, op: str, form: int, dtype: str
) -> None:
    kind = ((op, form), dtype, WANTS, True, OPERATIONS[op].operands)
    call = _drawn(kind, 300, 60, seed=3, wildness=1)
    call = replace(call, idx=np.sort(call.idx), ids_ascend=True)
    misses = small_launches.engine.snapshot().cache.misses
    answer = small_launches.answer(call)
    assert_bits_equal(answer, library(call, is_sorted=True))
    assert_bits_equal(small_launches.answer(replace(call, ids_ascend=False)), answer)
    assert small_launches.engine.snapshot().cache.misses == misses + 2


@pytest.mark.parametrize(
    ("rows", "segments"), [(10_240, 2560), (10_240, 2561), (10_241, 3200), (70_000, 70_000)]
)
def test_no_edge_of_a_bucket_changes_a_bit(engine: Running, rows: int, segments: int) -> None:
    call = case("segmented_rms_norm", rows=rows, segments=segments).call(*WANTS)
    assert_bits_equal(engine.answer(call), library(call))


def test_one_call_amid_random_others_has_the_same_bits_every_time(engine: Running) -> None:
    rng = np.random.default_rng(0)
    kind = (("segmented_rms_norm", 0), "float32", WANTS, True, ("x",))
    constant = _drawn(kind, 500, 20, seed=7)
    expected = library(constant)

    def crowd() -> list[Call]:
        return [
            _drawn(
                kind,
                *(int(size) for size in rng.integers(0, [3000, 300])),
                seed=int(rng.integers(2**16)),
                wildness=int(rng.integers(3)),
            )
            for _ in range(rng.integers(0, 12))
        ]

    async def scenario() -> set[int]:
        seen = set()
        for _ in range(60):
            before, after = crowd(), crowd()
            calls = Submitted(engine)
            for number, call in enumerate(before):
                calls.add(f"before {number}", call)
            answer = calls.add("constant", constant)
            for number, call in enumerate(after):
                calls.add(f"after {number}", call)
            await asyncio.sleep(float(rng.random()) * 1e-3)
            assert_bits_equal(await answer, expected)
            seen.add(calls.exchanges["constant"].batch)
        return seen

    assert len(engine.run(scenario())) > 5  # batches of many sizes


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_huge_id_of_a_companion_leads_nowhere(engine: Running, is_wide: bool) -> None:
    kind = ((SUM, -1), "float32", WANTS, True, ("x",))
    quiet = _drawn(kind, 30, 5, seed=1)
    wild = _drawn(kind, 30, 5, seed=2, wildness=2)
    huge = np.array([2**31 - 1, -1, -(2**31), 2**31 - 2, 5, 6] * 5, np.int32)
    if is_wide:
        huge = np.array([2**32, 2**63 - 1, -(2**63), 2**32 + 1, 2**40, 5] * 5, np.int64)
    wild = replace(wild, idx=huge, ids_in_range=False)
    before, bad, after = engine.compute(quiet, wild, quiet)
    assert_bits_equal(before, library(quiet))
    assert_bits_equal(after, before)
    assert_bits_equal(bad, library(wild))
    assert not bad["value"].any()
    assert not bad["vjp"]["x"].any()


@pytest.mark.parametrize("op", OPERATIONS)
def test_arrays_at_any_address_give_the_same_bits(engine: Running, op: str) -> None:
    rows = 10_240  # of the size of a bucket, so that they are computed where they are
    call = case(op, rows=rows, segments=2560).call(*WANTS)
    expected = engine.answer(call)
    assert_bits_equal(expected, library(call))
    for offset in (1, 2, 4, 8, 17, 63):
        moved = changed(call, lambda array, offset=offset: at(offset, array))
        assert_bits_equal(engine.answer(moved), expected)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("rows", [40, 10_240])
def test_the_callers_arrays_are_only_read(engine: Running, op: str, rows: int) -> None:
    call = case(op, rows=rows, segments=max(rows // 4, 7)).call(*WANTS)
    kept = changed(call, np.copy)
    answers = engine.compute(call, replace(call, ids_in_range=False), call)
    for name in ("operands", "tangents", "cotangent", "idx"):
        assert_bits_equal({name: getattr(call, name)}, {name: getattr(kept, name)})
    assert_bits_equal(answers[0], answers[2])


def test_an_answer_outlives_its_call_and_the_launches_after_it(engine: Running) -> None:
    call = case(SUM, rows=10_240, segments=2560).call(*WANTS)
    expected = changed(call, np.copy)
    answer = engine.answer(call)
    for array in (*call.operands.values(), *call.tangents.values(), call.cotangent):
        assert array is not None
        array[:] = np.nan
    for seed in range(5):
        engine.answer(case(SUM, rows=10_240, segments=2560, seed=seed).call(*WANTS))
    assert_bits_equal(answer, library(expected))


@pytest.mark.parametrize("buckets", ["geometric", "exact"])
@pytest.mark.parametrize(
    "warm_up",
    [
        {"rows": 1000, "segments": 100},
        {"rows": 1000, "segments": 50_000},
        {"rows": 1, "segments": 1},
        {"rows": 0, "segments": 100},
        {"rows": 100_000, "segments": 10, "dtype": "float64", "ndim": 1},
    ],
    ids=str,
)
def test_no_call_waits_for_a_compiler_after_the_warm_up(
    warm_up: dict[str, Any], buckets: str
) -> None:
    rng = np.random.default_rng(0)
    most, segments = warm_up["rows"], warm_up["segments"]
    drawn_as = {"dtype": warm_up.get("dtype", "float32"), "form": warm_up.get("ndim", 2) - 1}
    with engine_on(2, warm_up=({"op": MEAN, **warm_up},), buckets=buckets) as engine:
        before = engine.engine.snapshot().cache.misses
        for count in (1, 1, 3, 10, 40, 64, 100):
            calls = []
            for _ in range(count):
                rows = int(rng.integers(most // 2, most + 1))
                s = int(rng.integers(0, segments + 1)) if buckets == "geometric" else segments
                calls.append(case(MEAN, rows=rows, segments=s, **drawn_as).call())
            for answer in engine.compute(*calls):
                assert isinstance(answer, dict)
        if most > 2**16:
            call = case(MEAN, rows=most, segments=segments, **drawn_as).call()
            engine.answer(replace(call, idx=np.sort(call.idx), ids_ascend=True))
        assert engine.engine.snapshot().cache.misses == before


def test_functions_that_are_there_are_not_compiled_again_by_the_warm_up() -> None:
    warm_up = {"op": MEAN, "rows": 100, "segments": 5}
    with (
        engine_on(1, warm_up=(warm_up, warm_up)) as twice,
        engine_on(1, warm_up=(warm_up,)) as once,
    ):
        assert twice.engine.snapshot().cache.misses == once.engine.snapshot().cache.misses


def test_a_warm_up_covers_the_derivatives_that_it_names() -> None:
    drawn = case("segmented_dot", rows=100, segments=5)
    warm_up = {
        "op": "segmented_dot",
        "rows": 100,
        "segments": 5,
        "want": ["hvp", "value"],
        "cotangent": True,
        "tangents": ["y", "x"],
    }
    with engine_on(1, warm_up=(warm_up,)) as engine:
        before = engine.engine.snapshot().cache.misses
        fields = {**drawn.all_fields, "want": ["value", "hvp"]}
        call = validate("segmented_dot", fields, Settings())
        assert_bits_equal(engine.answer(call), library(call))
        assert engine.engine.snapshot().cache.misses == before


def test_the_loop_runs_on_while_the_engine_is_set_up_and_stopped() -> None:
    longest = 0.0

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def watch() -> None:
            nonlocal longest
            while True:
                began = loop.time()
                await asyncio.sleep(0)
                longest = max(longest, loop.time() - began)

        watcher = asyncio.ensure_future(watch())
        engine = Engine(Settings(platform="cpu", warm_up=({"op": MEAN, "rows": 10},)))
        await engine.start()
        await engine.wait_until_set_up()
        await engine.stop()
        watcher.cancel()

    asyncio.run(scenario())
    assert longest < 0.5


def test_a_snapshot_tells_devices_queue_and_cache() -> None:
    with engine_on(2) as engine:
        before = engine.engine.snapshot()
        assert (before.obstacle, before.queued) == (None, 0)
        assert [device.id for device in before.devices] == [0, 1]
        assert {(device.platform, device.state) for device in before.devices} == {("cpu", "ready")}
        assert (before.cache.entries, before.cache.misses) == (2, 2)
        engine.answer(case(MEAN).call())
        after = engine.engine.snapshot()
        assert (after.cache.entries, after.cache.misses) == (3, 3)
        assert after.cache.compile_seconds > before.cache.compile_seconds


def test_a_missing_gpu_is_never_replaced_by_the_cpu() -> None:
    if _has_cuda():
        pytest.skip("this machine has a GPU")
    with running(platform="cuda") as engine:
        assert engine.engine.devices == ()
        assert "cuda" in (engine.engine.obstacle or "")
        with pytest.raises(NotReadyError, match="cuda"):
            engine.answer(case(SUM).call())


def _has_cuda() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def test_every_device_of_the_platform_that_was_asked_for_computes(engine: Running) -> None:
    assert {device.platform for device in find_devices("cpu")} == {"cpu"}
    assert find_devices("auto") == jax.devices()
    assert engine.engine.devices == tuple(jax.devices("cpu"))


def test_two_engines_share_nothing_but_the_devices() -> None:
    with engine_on(1) as one, engine_on(1) as other:
        one.answer(case(MEAN).call())
        assert one.engine.snapshot().cache.misses == 2
        assert other.engine.snapshot().cache.misses == 1
        assert other.engine.snapshot().devices[0].launches == 0


@pytest.mark.parametrize(("cache_size", "is_warned"), [(1, True), (2, False)])
def test_a_warm_up_that_the_cache_does_not_hold_is_warned_of(
    caplog: pytest.LogCaptureFixture, cache_size: int, is_warned: bool
) -> None:
    warm_up = [{"op": op, "rows": 10, "segments": 5} for op in (MEAN, "segmented_dot")]
    with engine_on(1, warm_up=warm_up, cache_size=cache_size):
        assert ("SEGOPS_CACHE_SIZE=1 is by 1 too small" in caplog.text) == is_warned
