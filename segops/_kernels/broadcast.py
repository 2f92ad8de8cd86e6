"""Broadcasts: one result row per labelled row, from it and the row of its segment.

A row whose id is out of range gets zeros, whatever its entries are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Template

import warp as wp

from segops._kernels._native import CPP, DTYPES, POINTERS, launcher, module, share


@dataclass(frozen=True)
class Broadcast:
    """Entry k of a result row, from the labelled rows x and p and their segment's rows y, q and r.

    Entries are formed in float64 and rounded once; ``width`` and ``segment_width`` are those of a
    labelled and of a segment's row. ``over`` divides each product by r, and gives 0 where r is 0.
    """

    entry: str
    segment_width: int
    width: int = 3
    over: bool = False


_MUL = "X(k) * Y[0]"
_MATVEC = "X(0) * Y[k] + X(1) * Y[3 + k] + X(2) * Y[6 + k]"


def _twice(entry: str) -> str:
    return f"{entry} + {entry.replace('X', 'P').replace('Y', 'Q')}"


BROADCASTS = {
    "gather1": Broadcast("Y[k]", 1, width=1),
    "gather3": Broadcast("Y[k]", 3),
    "mul1": Broadcast(_MUL, 1),
    "mul2": Broadcast(_twice(_MUL), 1),
    "unit_mul1": Broadcast(_MUL, 1, over=True),
    "unit_mul2": Broadcast(_twice(_MUL), 1, over=True),
    "matvec1": Broadcast(_MATVEC, 9),
    "matvec2": Broadcast(_twice(_MATVEC), 9),
}

_ROWS = """
using T = $T;
constexpr int W = $W, WS = $WS;
$POINTERS
const int segments = y.shape[1];
const int* id = rows(ids, 1);
const T* xs = rows(x, W);
const T* ps = rows(p, W);
const T* ys = rows(y, WS);
const T* qs = rows(q, WS);
const T* over = rows(r, 1);
T* result = out.data + (size_t)b * out.shape[1] * W;
double divisor = 0.0, Y[WS], Q[WS];
int last = ~id[start];
for (int i = start; i < stop; ++i) {
    const int s = id[i];
    if (s != last) {
        last = s;
        divisor = (unsigned)s < (unsigned)segments ? $DIVISOR : 0.0;
        for (int k = 0; k < WS && divisor != 0.0; ++k) {
            Y[k] = double(ys[(size_t)s * WS + k])$SEGMENT;
            Q[k] = double(qs[(size_t)s * WS + k])$SEGMENT;
        }
    }
    const T *x = xs + (size_t)i * W, *p = ps + (size_t)i * W;
    T* to = result + (size_t)i * W;
    for (int k = 0; k < W; ++k) to[k] = divisor == 0.0 ? T(0) : T($ENTRY);
}
"""


_LABELLED = re.compile(r"([XP])\((\w)\)")
_DIVISION = {"float32": ("", " / divisor"), "float64": (" / divisor", "")}


def _body(kind: str, dtype: str) -> str:
    form = BROADCASTS[kind]
    # A quotient of float32 entries is in range in float64, whichever factor is divided.
    labelled, segment = ("", "") if not form.over else _DIVISION[dtype]
    return Template(_ROWS).substitute(
        T=CPP[dtype],
        W=form.width,
        WS=form.segment_width,
        POINTERS=POINTERS,
        ENTRY=_LABELLED.sub(lambda at: f"(double({at[1].lower()}[{at[2]}]){labelled})", form.entry),
        SEGMENT=segment,
        DIVISOR="double(over[s])" if form.over else "1.0",
    )


def _make_broadcast(kind: str, dtype: str) -> Callable[..., None]:
    broadcast_module = module(f"broadcast_{dtype}")
    rows = wp.array3d(dtype=DTYPES[dtype])
    labels = wp.array2d(dtype=wp.int32)

    @wp.func_native(_body(kind, dtype))
    def broadcast_rows(
        x: rows,
        y: rows,
        p: rows,
        q: rows,
        r: rows,
        ids: labels,
        out: rows,
        b: int,
        start: int,
        stop: int,
    ): ...

    @wp.kernel(module=broadcast_module)
    def broadcast(x: rows, y: rows, p: rows, q: rows, r: rows, ids: labels, out: rows, each: int):
        b, chunk = wp.tid()
        start = chunk * each
        broadcast_rows(
            x, y, p, q, r, ids, out, b, start, start + wp.min(each, out.shape[1] - start)
        )

    def launch_broadcast(
        x: rows, y: rows, p: rows, q: rows, r: rows, ids: labels, out: rows
    ) -> None:
        batch, length, _ = out.shape
        each = share(out.device, batch, length)
        wp.launch(
            broadcast,
            dim=(batch, -(-length // each)),
            inputs=[x, y, p, q, r, ids],
            outputs=[out, each],
            device=out.device,
        )

    return launcher(launch_broadcast, kind, dtype, broadcast_module)


launch_broadcast = {
    (kind, dtype): _make_broadcast(kind, dtype) for kind in BROADCASTS for dtype in DTYPES
}
