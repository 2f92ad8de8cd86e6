"""What the kernels share: floating dtypes, pointers to rows, Warp modules, shares of work."""

from collections.abc import Callable
from typing import Any

import warp as wp

DTYPES: dict[str, Any] = {"float32": wp.float32, "float64": wp.float64}
CPP = {"float32": "float", "float64": "double"}

# Rows are reached through plain pointers: Warp's array indexing multiplies run-time strides, which
# costs a CPU most of its memory bandwidth. `rows` is where batch row b of an array begins.
POINTERS = """
auto rows = [b](const auto& a, int width) {
    return a.data + (a.shape[0] == 1 ? 0 : (size_t)b * a.shape[1] * width);
};
"""

# Where ids ascend: `first(lo, hi, s)` is the first place in [lo, hi) whose id is s or more, or hi;
# `run_end(begin, s)` is the end of the run of s that starts at begin, found by galloping.
SEARCH = """
auto first = [id](int lo, int hi, int s) {
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (id[mid] < s) lo = mid + 1; else hi = mid;
    }
    return lo;
};
auto run_end = [id, n, first](int begin, int s) {
    int near = begin, step = 1;
    while (step < n - near && id[near + step] <= s) {
        near += step;
        if (step < 1 << 29) step *= 2;
    }
    return first(near, step < n - near ? near + step : n, s + 1);
};
"""

_MOST_THREADS = 2**30


def share(device: Any, batch: int, items: int) -> int:
    """Return how many of a batch row's items one thread takes: all on the CPU, else about one."""
    if device.is_cpu:
        return max(items, 1)
    return max(1, -(-batch * items // _MOST_THREADS))


def module(name: str) -> Any:
    """Return the Warp module of that name in this package; each is compiled by itself when needed.

    Products are not fused with additions: TwoSum relies on each rounding, and results must not
    depend on which route the compiler fused.
    """
    warp_module = wp.get_module(f"{__package__}.{name}")
    wp.set_module_options({"enable_backward": False, "fuse_fp": False}, warp_module)
    return warp_module


def launcher(launch: Callable[..., None], kind: str, dtype: str, warp_module: Any) -> Any:
    """Name a launcher after its case and its Warp module.

    JAX knows it by that name, in every process the same; `warp.jax_callable` loads that module.
    """
    launch.__name__ = launch.__qualname__ = f"{launch.__name__}_{kind}_{dtype}"
    launch.__module__ = warp_module.name
    return launch
