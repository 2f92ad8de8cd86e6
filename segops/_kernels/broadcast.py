"""Broadcasts: one result row per labelled row, from it and the row of its segment.

A row whose id is out of range gets zeros, whatever its entries are. The same module counts the
rows of each segment.
"""

from collections.abc import Callable
from string import Template

import warp as wp

from segops._kernels._native import CPP, DTYPES, POINTERS, named, share

wp.set_module_options({"enable_backward": False})

# Entry k of a result row from the labelled row x and the segment's row y; widths of x, y and out.
BROADCASTS = {
    "gather1": ("y[k]", (0, 1, 1)),
    "gather3": ("y[k]", (0, 3, 3)),
    "mul": ("x[k] * y[0]", (3, 1, 3)),
    "div": ("y[0] == T(0) ? T(0) : x[k] / y[0]", (3, 1, 3)),
    "matvec": (
        "T(double(x[0]) * y[k] + double(x[1]) * y[3 + k] + double(x[2]) * y[6 + k])",
        (3, 9, 3),
    ),
}

_ROWS = """
using T = $T;
$POINTERS
const int segments = y.shape[1];
const int* id = rows(ids, 1);
const T* xs = rows(x, $X);
const T* ys = rows(y, $Y);
T* result = out.data + (size_t)b * out.shape[1] * $OUT;
for (int i = start; i < stop; ++i) {
    T* to = result + (size_t)i * $OUT;
    if ((unsigned)id[i] < (unsigned)segments) {
        const T* x = xs + (size_t)i * $X;
        const T* y = ys + (size_t)id[i] * $Y;
        for (int k = 0; k < $OUT; ++k) to[k] = $ENTRY;
    } else {
        for (int k = 0; k < $OUT; ++k) to[k] = T(0);
    }
}
"""


def _body(kind: str, dtype: str) -> str:
    entry, (x, y, out) = BROADCASTS[kind]
    return Template(_ROWS).substitute(
        T=CPP[dtype], POINTERS=POINTERS, X=x, Y=y, OUT=out, ENTRY=entry
    )


def _make_broadcast(kind: str, dtype: str) -> Callable[..., None]:
    rows = wp.array3d(dtype=DTYPES[dtype])
    labels = wp.array2d(dtype=wp.int32)

    @wp.func_native(_body(kind, dtype))
    def broadcast_rows(
        x: rows, y: rows, ids: labels, out: rows, b: int, start: int, stop: int
    ): ...

    @wp.kernel
    def broadcast(x: rows, y: rows, ids: labels, out: rows, each: int):
        b, chunk = wp.tid()
        stop = wp.min((chunk + 1) * each, out.shape[1])
        broadcast_rows(x, y, ids, out, b, chunk * each, stop)

    def launch_broadcast(x: rows, y: rows, ids: labels, out: rows) -> None:
        batch, length, _ = out.shape
        each = share(out.device, batch, length)
        wp.launch(
            broadcast,
            dim=(batch, -(-length // each)),
            inputs=[x, y, ids],
            outputs=[out, each],
            device=out.device,
        )

    return named(launch_broadcast, kind, dtype)


launch_broadcast = {
    (kind, dtype): _make_broadcast(kind, dtype) for kind in BROADCASTS for dtype in DTYPES
}


@wp.kernel
def count(ids: wp.array2d(dtype=wp.int32), out: wp.array2d(dtype=wp.int32), each: int):
    b, chunk = wp.tid()
    for i in range(chunk * each, wp.min((chunk + 1) * each, ids.shape[1])):
        if ids[b, i] >= 0 and ids[b, i] < out.shape[1]:
            wp.atomic_add(out, b, ids[b, i], 1)


def launch_count(ids: wp.array2d(dtype=wp.int32), out: wp.array2d(dtype=wp.int32)) -> None:
    """Count the rows of each segment. Integer additions give the same counts in any order."""
    batch, length = ids.shape
    each = share(out.device, batch, length)
    out.zero_()
    wp.launch(
        count, dim=(batch, -(-length // each)), inputs=[ids], outputs=[out, each], device=out.device
    )
