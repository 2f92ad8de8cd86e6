"""Kernels on Warp arrays: any share of work a thread gives the same bits, and stays in bounds."""

import inspect
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from segops._kernels import broadcast, count, reduce
from tests.library.axes import each_case, each_dtype, each_route
from tests.library.helpers import problem

BATCH, ROWS, SEGMENTS = 3, 50, 7
each_reduction = pytest.mark.parametrize("kind", reduce.REDUCTIONS)
each_broadcast = pytest.mark.parametrize("kind", broadcast.BROADCASTS)
each_batch = pytest.mark.parametrize("shared", [(), ("x", "p"), ("ids",), ("y", "q", "r")], ids=str)
each_share = pytest.mark.parametrize("each", [1, 2, 5])
LAUNCHERS = [
    *reduce.launch_runs.values(),
    *reduce.launch_scatter.values(),
    *broadcast.launch_broadcast.values(),
    count.launch_runs,
    count.launch_scatter,
]


@pytest.fixture
def split(monkeypatch):
    """Return what gives each thread so many items, as a GPU would, and not a whole batch row."""

    def items(each):
        for module in (reduce, broadcast, count):
            monkeypatch.setattr(module, "share", lambda _device, _batch, _items: each)

    return items


def inputs(width, segment_width, dtype, *, ordered=False, shared=(), reducing=True):
    """Return random operands by name; a shared one has a batch axis of one."""
    rng = np.random.default_rng(0)
    widths = {"x": width, "p": width, "y": segment_width, "q": segment_width, "r": 1}
    lengths = dict.fromkeys("xp", ROWS) | dict.fromkeys("yq", ROWS if reducing else SEGMENTS)
    shapes = {name: (lengths.get(name, SEGMENTS), w) for name, w in widths.items()}
    arrays = {
        name: (rng.normal(size=(BATCH, *shape)) * 10.0 ** rng.integers(-9, 9)).astype(dtype)
        for name, shape in shapes.items()
    }
    arrays["r"][:, 2] = 0
    ids = rng.integers(-2, SEGMENTS + 2, (BATCH, ROWS)).astype(np.int32)
    ids[ids == 4] = 3
    arrays["ids"] = np.sort(ids, axis=1) if ordered else ids
    arrays["order"] = np.zeros((1, 0), np.int32)
    return {name: a[:1] if name in shared else a for name, a in arrays.items()}


def launched(launch, arrays, out, scratch=1):
    """Run a launcher on Warp arrays and return its result."""
    dtype = {np.dtype(np.float32): wp.float32, np.dtype(np.float64): wp.float64}
    given = {
        name: wp.array(a, dtype=dtype.get(a.dtype, wp.int32), device="cpu", ndim=a.ndim)
        for name, a in arrays.items()
    }
    kind = launch.__name__.rpartition("_")[2]
    given["out"] = wp.full(out, 77, dtype=getattr(wp, kind), device="cpu")
    given["scratch"] = wp.full((*out[:2], scratch), -1, dtype=wp.int32, device="cpu")
    launch(*(given[name] for name in inspect.signature(launch).parameters))
    return given["out"].numpy()


def reduced(kind, dtype, arrays, route="runs"):
    launch = {"runs": reduce.launch_runs, "scatter": reduce.launch_scatter}[route]
    case = (kind, np.dtype(dtype).name)
    shape = (BATCH, SEGMENTS, len(reduce.REDUCTIONS[kind].terms))
    return launched(launch[case], arrays, shape, reduce.scratch_words(*case))


def spread(kind, dtype, arrays):
    shape = (BATCH, ROWS, broadcast.BROADCASTS[kind].width)
    return launched(broadcast.launch_broadcast[kind, np.dtype(dtype).name], arrays, shape)


def reduction_inputs(kind, dtype, **options):
    width = reduce.REDUCTIONS[kind].width
    return inputs(width, width, dtype, **options)


def broadcast_inputs(kind, dtype, **options):
    form = broadcast.BROADCASTS[kind]
    return inputs(form.width, form.segment_width, dtype, reducing=False, **options)


# --- any share of work ---------------------------------------------------------------------------


@each_reduction
@each_dtype
@each_share
def test_threads_that_share_a_reduction_give_the_bits_of_one(kind, dtype, each, split):
    arrays = reduction_inputs(kind, dtype, ordered=True)
    alone = reduced(kind, dtype, arrays)
    split(each)
    assert reduced(kind, dtype, arrays).tobytes() == alone.tobytes()


@each_broadcast
@each_dtype
@each_share
@each_route
def test_threads_that_share_a_broadcast_give_the_bits_of_one(kind, dtype, each, ordered, split):
    arrays = broadcast_inputs(kind, dtype, ordered=ordered)
    alone = spread(kind, dtype, arrays)
    split(each)
    assert spread(kind, dtype, arrays).tobytes() == alone.tobytes()


@each_share
@each_route
def test_threads_that_share_a_count_give_the_right_one(each, ordered, split):
    ids = inputs(1, 1, np.float32, ordered=ordered)["ids"]
    expected = (ids[:, :, None] == np.arange(SEGMENTS)).sum(axis=1)
    launch = count.launch_runs if ordered else count.launch_scatter
    split(each)
    np.testing.assert_array_equal(launched(launch, {"ids": ids}, (BATCH, SEGMENTS)), expected)


# --- routes --------------------------------------------------------------------------------------


@each_reduction
@each_dtype
@each_batch
@pytest.mark.parametrize("each", [1, SEGMENTS])
def test_rows_reached_in_sorted_order_give_the_bits_of_the_scatter(
    kind, dtype, shared, each, split
):
    arrays = reduction_inputs(kind, dtype, shared=shared)
    scattered = reduced(kind, dtype, arrays, "scatter")
    order = np.argsort(arrays["ids"], axis=1, kind="stable").astype(np.int32)
    in_order = arrays | {"ids": np.sort(arrays["ids"], axis=1), "order": order}
    split(each)
    assert reduced(kind, dtype, in_order).tobytes() == scattered.tobytes()


@each_reduction
@each_dtype
def test_rows_in_order_give_the_bits_of_the_scatter(kind, dtype):
    arrays = reduction_inputs(kind, dtype, ordered=True)
    scattered = reduced(kind, dtype, arrays, "scatter")
    assert reduced(kind, dtype, arrays).tobytes() == scattered.tobytes()


@each_reduction
@each_dtype
@each_batch
@pytest.mark.parametrize("route", ["runs", "scatter"])
def test_shared_operand_is_read_in_every_batch_row(kind, dtype, shared, route):
    arrays = reduction_inputs(kind, dtype, ordered=route == "runs", shared=shared)
    copied = {n: np.repeat(a, BATCH, axis=0) if n in shared else a for n, a in arrays.items()}
    of_copies = reduced(kind, dtype, copied, route)
    assert reduced(kind, dtype, arrays, route).tobytes() == of_copies.tobytes()


@each_broadcast
@each_dtype
@each_batch
def test_shared_operand_of_a_broadcast_is_read_in_every_batch_row(kind, dtype, shared):
    arrays = broadcast_inputs(kind, dtype, shared=shared)
    copied = {n: np.repeat(a, BATCH, axis=0) if n in shared else a for n, a in arrays.items()}
    assert spread(kind, dtype, arrays).tobytes() == spread(kind, dtype, copied).tobytes()


# --- bounds --------------------------------------------------------------------------------------

GUARD = 64


def guarded(a, filler, dtype):
    """Return a Warp array in the middle of a longer one, and the longer one."""
    whole = wp.full(a.size + 2 * GUARD, filler, dtype=dtype, device="cpu")
    inside = whole[GUARD : GUARD + a.size].reshape(a.shape)
    wp.copy(inside, wp.array(a, dtype=dtype, device="cpu"))
    return inside, whole


def wild_ids(rng):
    pool = [-(2**31), -1, 0, 1, SEGMENTS - 1, SEGMENTS, 2**31 - 1]
    return np.where(
        rng.random((BATCH, ROWS)) < 0.5,
        rng.choice(pool, (BATCH, ROWS)),
        rng.integers(0, SEGMENTS, (BATCH, ROWS)),
    ).astype(np.int32)


@each_dtype
@pytest.mark.parametrize("each", [1, 3, SEGMENTS])
@pytest.mark.parametrize("route", ["runs", "scatter", "broadcast"])
def test_no_ids_and_no_broken_promise_reach_past_an_array(dtype, route, each, split):
    kind = "mul2" if route == "broadcast" else "dot2"
    launch = {
        "runs": reduce.launch_runs,
        "scatter": reduce.launch_scatter,
        "broadcast": broadcast.launch_broadcast,
    }[route][kind, np.dtype(dtype).name]
    make = broadcast_inputs if route == "broadcast" else reduction_inputs
    shape = (BATCH, ROWS, 3) if route == "broadcast" else (BATCH, SEGMENTS, 1)
    words = 1 if route == "broadcast" else reduce.scratch_words(kind, np.dtype(dtype).name)
    split(each)
    rng = np.random.default_rng(0)
    floating = {np.float32: wp.float32, np.float64: wp.float64}[dtype]
    for _ in range(50):
        arrays = make(kind, dtype) | {"ids": wild_ids(rng)}
        arrays |= {
            "out": np.zeros(shape, dtype),
            "scratch": np.zeros((*shape[:2], words), np.int32),
        }
        # Rows read past an array would be NaN, ids past theirs would all be of segment 0.
        given = {}
        for name, a in arrays.items():
            is_float = a.dtype == dtype
            filler = np.nan if is_float else 0
            given[name] = guarded(a, filler, floating if is_float else wp.int32)
        launch(*(given[name][0] for name in inspect.signature(launch).parameters))
        assert np.isfinite(given["out"][0].numpy()).all()
        for name in ("out", "scratch"):
            whole = given[name][1].numpy()
            edges = np.concatenate([whole[:GUARD], whole[-GUARD:]])
            assert np.isnan(edges).all() if name == "out" else not edges.any()


# Untouched zeros take no memory: 4 GiB of ids are addressed and a few pages read.
LONG_RUN = """
import numpy as np, warp as wp
from segops._kernels import count
rows = 2**30 + 8
ids = np.zeros(rows, np.int32)
ids[0] = -1
labels = wp.array(ptr=ids.ctypes.data, shape=(1, rows), dtype=wp.int32, device="cpu")
out = wp.zeros((1, 2), dtype=wp.int32, device="cpu")
count.launch_runs(labels, out)
assert out.numpy().tolist() == [[rows - 1, 0]], out.numpy()
"""


def test_search_for_the_end_of_a_long_run_does_not_overflow(request):
    run = subprocess.run(
        [sys.executable, "-c", LONG_RUN],
        capture_output=True,
        text=True,
        cwd=request.config.rootpath,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@each_reduction
@each_dtype
@pytest.mark.parametrize("route", ["runs", "scatter"])
def test_every_result_is_written_also_without_rows(kind, dtype, route):
    arrays = reduction_inputs(kind, dtype)
    arrays = {n: a if n in ("r", "order") else a[:, :0] for n, a in arrays.items()}
    assert not reduced(kind, dtype, arrays, route).any()


# --- CUDA, without one ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({launch.__module__ for launch in LAUNCHERS}))
def test_kernels_compile_for_cuda(name, tmp_path):
    wp.init()
    if not {80, 90, 100} <= set(wp.get_cuda_supported_archs()):
        pytest.skip("this build of Warp has no compiler for CUDA (sm_80, sm_90, sm_100)")
    binaries = wp.compile_aot_module(name, arch=[80, 90, 100], module_dir=tmp_path, use_ptx=False)
    assert len(binaries) == 3
    for binary in binaries:
        assert binary.suffix == ".cubin"
        assert binary.read_bytes()[:4] == b"\x7fELF"


def custom_calls(function, operands, platforms=("cuda",)):
    text = jax.jit(function).trace(*operands).lower(lowering_platforms=platforms).as_text()
    return re.findall(r"custom_call @([\w.]+)\(", text), text


@each_case
@each_dtype
@each_route
@pytest.mark.parametrize("order", [0, 1, 2])
def test_lowering_for_cuda_calls_our_kernels_and_never_the_host(case, dtype, ordered, order):
    p = problem(case, ordered=ordered, dtype=dtype)
    function = p.function
    for _ in range(order):
        function = summed_gradient(function)
    calls, text = custom_calls(function, p.operands)
    ours = {launch.__name__ for launch in LAUNCHERS}
    assert calls
    assert {re.sub(r"_\d+$", "", call) for call in calls} <= ours
    assert not any("scatter" in call and "count" not in call for call in calls)
    assert "callback" not in text


def summed_gradient(function):
    return jax.grad(lambda x, *rest: jnp.sum(jnp.sin(function(x, *rest))))


@each_case
def test_one_lowering_serves_both_platforms(case):
    p = problem(case)
    calls, text = custom_calls(p.function, p.operands, platforms=("cpu", "cuda"))
    assert calls
    assert "callback" not in text
