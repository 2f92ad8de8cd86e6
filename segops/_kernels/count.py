"""The number of rows of each segment."""

import warp as wp

from segops._kernels._native import POINTERS, SEARCH, launcher, module, share

_module = module("count")
_labels = wp.array2d(dtype=wp.int32)

_COUNT_RUNS = f"""
{POINTERS}
const int* id = rows(ids, 1);
const int n = ids.shape[1];
{SEARCH}
int begin = first(0, n, start);
for (int s = start; s < stop; ++s) {{
    const int end = run_end(begin, s);
    out.data[(size_t)b * out.shape[1] + s] = end - begin;
    begin = end;
}}
"""


@wp.func_native(_COUNT_RUNS)
def count_run_lengths(ids: _labels, out: _labels, b: int, start: int, stop: int): ...


@wp.kernel(module=_module)
def count_runs(ids: _labels, out: _labels, each: int):
    b, chunk = wp.tid()
    start = chunk * each
    count_run_lengths(ids, out, b, start, start + wp.min(each, out.shape[1] - start))


_COUNT_SCATTER = f"""
{POINTERS}
const int* id = rows(ids, 1);
int* counts = out.data + (size_t)b * out.shape[1];
for (int i = start; i < stop; ++i) {{
    if ((unsigned)id[i] >= (unsigned)out.shape[1]) continue;
#if defined(__CUDA_ARCH__)
    atomicAdd(counts + id[i], 1);
#else
    ++counts[id[i]];
#endif
}}
"""


@wp.func_native(_COUNT_SCATTER)
def count_rows(ids: _labels, out: _labels, b: int, start: int, stop: int): ...


@wp.kernel(module=_module)
def count_scatter(ids: _labels, out: _labels, each: int):
    b, chunk = wp.tid()
    start = chunk * each
    count_rows(ids, out, b, start, start + wp.min(each, ids.shape[1] - start))


def _launch_runs(ids: _labels, out: _labels) -> None:
    batch, segments = out.shape
    each = share(out.device, batch, segments)
    wp.launch(
        count_runs,
        dim=(batch, -(-segments // each)),
        inputs=[ids],
        outputs=[out, each],
        device=out.device,
    )


def _launch_scatter(ids: _labels, out: _labels) -> None:
    batch, length = ids.shape
    each = share(out.device, batch, length)
    out.zero_()
    wp.launch(
        count_scatter,
        dim=(batch, -(-length // each)),
        inputs=[ids],
        outputs=[out, each],
        device=out.device,
    )


launch_runs = launcher(_launch_runs, "count", "int32", _module)
# Integers add up to the same count in any order, so these additions may be atomic.
launch_scatter = launcher(_launch_scatter, "count", "int32", _module)
