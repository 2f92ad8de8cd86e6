"""The number of rows of each segment."""

import warp as wp

from segops._kernels._native import POINTERS, SEARCH, launcher, module, share

_module = module("count")
_labels = wp.array2d(dtype=wp.int32)

_COUNT_RUNS = f"""
{POINTERS}
const int* id = rows(ids, 1);
{SEARCH}
const int n = ids.shape[1];
out.data[(size_t)b * out.shape[1] + s] = first(0, n, s + 1) - first(0, n, s);
"""


@wp.func_native(_COUNT_RUNS)
def count_run(ids: _labels, out: _labels, b: int, s: int): ...


@wp.kernel(module=_module)
def count_runs(ids: _labels, out: _labels):
    b, s = wp.tid()
    count_run(ids, out, b, s)


@wp.kernel(module=_module)
def count_scatter(ids: _labels, out: _labels, each: int):
    b, chunk = wp.tid()
    for i in range(chunk * each, wp.min((chunk + 1) * each, ids.shape[1])):
        if ids[b, i] >= 0 and ids[b, i] < out.shape[1]:
            wp.atomic_add(out, b, ids[b, i], 1)


def _launch_runs(ids: _labels, out: _labels) -> None:
    wp.launch(count_runs, dim=out.shape, inputs=[ids], outputs=[out], device=out.device)


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
