"""Timing of several calls side by side."""

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import jax

Call = Callable[[], Any]

MIN_ROUNDS = 7
MAX_ROUNDS = 300
SAMPLE_SECONDS = 1e-3
"""Shorter calls are repeated until a sample lasts about this long; a sample is the mean."""


def interleave(calls: Mapping[str, Call], seconds: float) -> dict[str, list[float]]:
    """Time the calls in rounds, so that drift of the machine falls on all of them alike.

    Every round takes one sample of each call, in an order drawn anew. Rounds go on until
    ``seconds`` have passed for each call.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    draw = random.Random(0)
    deadline = perf_counter() + seconds * len(calls)
    with _no_garbage_collection():
        for done in range(MAX_ROUNDS):
            if done >= MIN_ROUNDS and perf_counter() > deadline:
                break
            for name in draw.sample(list(calls), len(calls)):
                samples[name].append(_sample(calls[name], repeats[name]))
    return samples


def _repeats(call: Call) -> int:
    _sample(call, 1)
    return max(1, round(SAMPLE_SECONDS / _sample(call, 3)))


def _sample(call: Call, repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(call())
    return (perf_counter() - start) / repeats


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
