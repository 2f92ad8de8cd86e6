"""Reductions: one result row per segment, from rows labelled by an id.

Two routes give the same bits. Along *runs* of ids in ascending order, a thread owns a range of
segments, finds their rows by search and writes each result once. By *scatter*, for ids in any
order on the CPU, a thread walks the rows of a batch row and keeps an accumulator per segment in
scratch memory. Both add the rows of a segment one after another in their order, so a result
depends on nothing but those rows.

float32 rows are accumulated in float64. float64 rows are accumulated in two words with Knuth's
TwoSum, and sums that leave the range of float64 on the way are added once more under a
power-of-two scale (after Blue's algorithm for the Euclidean norm). Results are rounded once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from string import Template

import warp as wp

from segops._kernels._native import CPP, DTYPES, POINTERS, SEARCH, launcher, module, share


@dataclass(frozen=True)
class Reduction:
    """What a row adds to each accumulator, in its entries x0, x1, ..., y0, ..., p0, ..., q0, ...

    ``finish`` says what becomes of a sum: itself, the ``mean`` or the ``root`` of the mean.
    ``over`` divides what is summed by the segment's r, and gives 0 where r is 0.
    """

    terms: tuple[str, ...]
    width: int = 3
    finish: str = "sum"
    over: bool = False


_ONE = ("x0",)
_THREE = ("x0", "x1", "x2")
_DOT = ("x0 * y0 + x1 * y1 + x2 * y2",)
_DOT2 = (f"{_DOT[0]} + p0 * q0 + p1 * q1 + p2 * q2",)
_OUTER = tuple(f"x{a} * y{b}" for a in range(3) for b in range(3))
_OUTER2 = tuple(f"x{a} * y{b} + p{a} * q{b}" for a in range(3) for b in range(3))

REDUCTIONS = {
    "sum1": Reduction(_ONE, width=1),
    "sum3": Reduction(_THREE),
    "mean1": Reduction(_ONE, width=1, finish="mean"),
    "mean3": Reduction(_THREE, finish="mean"),
    "dot1": Reduction(_DOT),
    "dot2": Reduction(_DOT2),
    "dot_mean1": Reduction(_DOT, finish="mean"),
    "dot_mean2": Reduction(_DOT2, finish="mean"),
    "unit_dot_mean1": Reduction(_DOT, finish="mean", over=True),
    "unit_dot_mean2": Reduction(_DOT2, finish="mean", over=True),
    "outer1": Reduction(_OUTER),
    "outer2": Reduction(_OUTER2),
    "rms": Reduction(("x0 * x0 + x1 * x1 + x2 * x2",), finish="root"),
}

_PRELUDE = """
using T = $T;
constexpr int K = $K, W = $W;
$POINTERS
const int n = ids.shape[1], segments = out.shape[1];
const int* id = rows(ids, 1);
const T* xs = rows(x, W);
const T* ys = rows(y, W);
const T* ps = rows(p, W);
const T* qs = rows(q, W);
const T* over = rows(r, 1);
T* result = out.data + (size_t)b * segments * K;
"""

_WIDER = """
struct Sums {
    double hi[K] = {};
    int count = 0;
};
auto add = [](Sums& a, const T* x, const T* y, const T* p, const T* q, double r) {
    $ADDS
};
auto again = [](Sums&) { return false; };
auto pending = [](const Sums&) { return true; };
auto total = [](const Sums& a, int k) { return a.hi[k]; };
auto unscale = [](const Sums&, int, double value) { return value; };
"""

# `again` asks for a second pass over a segment's rows, at most once, when a sum has overflowed
# (or, for a root, has left the range where squares are exact to the last place).
_COMPENSATED = """
struct Sums {
    double hi[K] = {}, lo[K] = {}, scale[K];
    int count = 0, passes = 1;
    Sums() { for (int k = 0; k < K; ++k) scale[k] = 1.0; }
};
auto plus = [](Sums& a, int k, double term) {
    const double sum = a.hi[k] + term, part = sum - a.hi[k];
    a.lo[k] += (a.hi[k] - (sum - part)) + (term - part);
    a.hi[k] = sum;
};
auto add = [plus](Sums& a, const T* x, const T* y, const T* p, const T* q, double r) {
    $ADDS
};
auto again = [](Sums& a) {
    if (a.passes == 2 || a.count == 0) return false;
    Sums fresh;
    for (int k = 0; k < K; ++k) {
        if (!($LARGEST > fabs(a.hi[k]))) fresh.scale[k] = $SHRINK;
        else if (a.hi[k] < $SMALLEST) fresh.scale[k] = $GROW;
        fresh.passes = fresh.scale[k] == 1.0 ? fresh.passes : 2;
    }
    if (fresh.passes == 2) a = fresh;
    return fresh.passes == 2;
};
auto pending = [](const Sums& a) { return a.passes == 2; };
auto total = [](const Sums& a, int k) {
    const bool finite = a.hi[k] - a.hi[k] == 0.0;
    return finite ? a.hi[k] + a.lo[k] : a.hi[k];
};
auto unscale = [](const Sums& a, int k, double value) { return value / a.scale[k]; };
"""

_STORE = """
auto add_rows = [=](Sums& a, int from, int to, const int* place, double r) {
    for (int i = from; i < to; ++i) {
        const size_t at = (size_t)(place ? place[i] : i) * W;
        add(a, xs + at, ys + at, ps + at, qs + at, r);
    }
    a.count += to - from;
};
auto store = [total, unscale](const Sums& a, T* to, double r) {
    for (int k = 0; k < K; ++k) {
        const double sum = total(a, k);
        to[k] = a.count == 0 || r == 0 ? T(0) : T(unscale(a, k, $FINISH));
    }
};
"""

_RUNS = (
    SEARCH
    + """
const int* place = order.shape[1] > 0 ? rows(order, 1) : nullptr;
int begin = first(0, n, start);
for (int s = start; s < stop; ++s) {
    const int end = run_end(begin, s);
    const double r = $DIVISOR;
    Sums sums;
    do add_rows(sums, begin, end, place, r); while (again(sums));
    store(sums, result + (size_t)s * K, r);
    begin = end;
}
"""
)

_SCATTER = """
Sums* all = reinterpret_cast<Sums*>(scratch.data + (size_t)b * segments * scratch.shape[2]);
for (int s = 0; s < segments; ++s) all[s] = Sums();
auto walk = [=](auto wanted) {
    for (int i = 0, end; i < n; i = end) {
        const int s = id[i];
        for (end = i + 1; end < n && id[end] == s;) ++end;
        if ((unsigned)s >= (unsigned)segments || !wanted(all[s])) continue;
        Sums sums = all[s];
        add_rows(sums, i, end, nullptr, $DIVISOR);
        all[s] = sums;
    }
};
walk([](const Sums&) { return true; });
bool repeat = false;
for (int s = 0; s < segments; ++s) repeat |= again(all[s]);
if (repeat) walk(pending);
for (int s = 0; s < segments; ++s) store(all[s], result + (size_t)s * K, $DIVISOR);
"""

_FINISH = {"sum": "sum", "mean": "sum / a.count", "root": "sqrt(sum / a.count)"}

# Where a float64 sum is trusted, and the scales of the second pass beyond it.
_RANGE = {"LARGEST": "INFINITY", "SHRINK": "0x1p-64", "SMALLEST": "-INFINITY", "GROW": "1.0"}
_ROOT_RANGE = {
    "LARGEST": "0x1p900",
    "SHRINK": "0x1p-600",
    "SMALLEST": "0x1p-900",
    "GROW": "0x1p600",
}


_ENTRY = re.compile(r"([xypq])(\d)")


def _adds(reduction: Reduction, dtype: str) -> str:
    """Return the C++ that adds a row's terms, each product by itself where it is compensated."""
    if dtype == "float32":
        wide = [_ENTRY.sub(r"double(\1[\2])", term) for term in reduction.terms]
        return "\n    ".join(f"a.hi[{k}] += {term};" for k, term in enumerate(wide))
    return "\n    ".join(
        f"plus(a, {k}, {_ENTRY.sub(partial(_scaled, reduction.over, k), part)});"
        for k, term in enumerate(reduction.terms)
        for part in term.split(" + ")
    )


def _scaled(over: bool, k: int, entry: re.Match[str]) -> str:
    name, index = entry.groups()
    if name in "yq":
        return f"{name}[{index}]"
    return f"({name}[{index}]{' / r' if over else ''} * a.scale[{k}])"


def _body(kind: str, dtype: str, route: str) -> str:
    reduction = REDUCTIONS[kind]
    wide = dtype == "float32"
    finish = _FINISH[reduction.finish] + (" / r" if reduction.over and wide else "")
    text = _PRELUDE + (_WIDER if wide else _COMPENSATED) + _STORE + route
    return Template(text).substitute(
        T=CPP[dtype],
        K=len(reduction.terms),
        W=reduction.width,
        POINTERS=POINTERS,
        ADDS=_adds(reduction, dtype),
        FINISH=finish,
        DIVISOR="over[s]" if reduction.over else "1.0",
        **(_ROOT_RANGE if reduction.finish == "root" else _RANGE),
    )


def scratch_words(kind: str, dtype: str) -> int:
    """Return how many int32 words of scratch the scatter route needs for each segment."""
    accumulators = len(REDUCTIONS[kind].terms)
    return 2 * accumulators + 2 if dtype == "float32" else 6 * accumulators + 2


def _make_runs(kind: str, dtype: str) -> Callable[..., None]:
    runs_module = module(f"reduce_runs_{dtype}")
    rows = wp.array3d(dtype=DTYPES[dtype])
    labels = wp.array2d(dtype=wp.int32)

    @wp.func_native(_body(kind, dtype, _RUNS))
    def reduce_runs(
        x: rows,
        y: rows,
        p: rows,
        q: rows,
        r: rows,
        ids: labels,
        order: labels,
        out: rows,
        b: int,
        start: int,
        stop: int,
    ): ...

    @wp.kernel(module=runs_module)
    def runs(
        x: rows,
        y: rows,
        p: rows,
        q: rows,
        r: rows,
        ids: labels,
        order: labels,
        out: rows,
        each: int,
    ):
        b, chunk = wp.tid()
        start = chunk * each
        reduce_runs(
            x, y, p, q, r, ids, order, out, b, start, start + wp.min(each, out.shape[1] - start)
        )

    def launch_runs(
        x: rows, y: rows, p: rows, q: rows, r: rows, ids: labels, order: labels, out: rows
    ) -> None:
        batch, segments, _ = out.shape
        each = share(out.device, batch, segments)
        wp.launch(
            runs,
            dim=(batch, -(-segments // each)),
            inputs=[x, y, p, q, r, ids, order],
            outputs=[out, each],
            device=out.device,
        )

    return launcher(launch_runs, kind, dtype, runs_module)


def _make_scatter(kind: str, dtype: str) -> Callable[..., None]:
    scatter_module = module(f"reduce_scatter_{dtype}")
    rows = wp.array3d(dtype=DTYPES[dtype])
    labels = wp.array2d(dtype=wp.int32)
    words = wp.array3d(dtype=wp.int32)

    @wp.func_native(_body(kind, dtype, _SCATTER))
    def reduce_scatter(
        x: rows,
        y: rows,
        p: rows,
        q: rows,
        r: rows,
        ids: labels,
        out: rows,
        scratch: words,
        b: int,
    ): ...

    @wp.kernel(module=scatter_module)
    def scatter(
        x: rows, y: rows, p: rows, q: rows, r: rows, ids: labels, out: rows, scratch: words
    ):
        reduce_scatter(x, y, p, q, r, ids, out, scratch, wp.tid())

    def launch_scatter(
        x: rows, y: rows, p: rows, q: rows, r: rows, ids: labels, out: rows, scratch: words
    ) -> None:
        wp.launch(
            scatter,
            dim=out.shape[0],
            inputs=[x, y, p, q, r, ids],
            outputs=[out, scratch],
            device=out.device,
        )

    return launcher(launch_scatter, kind, dtype, scatter_module)


_CASES = [(kind, dtype) for kind in REDUCTIONS for dtype in DTYPES]

launch_runs = {case: _make_runs(*case) for case in _CASES}
launch_scatter = {case: _make_scatter(*case) for case in _CASES}
