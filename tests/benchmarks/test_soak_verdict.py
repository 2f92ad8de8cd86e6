"""Whether each condition alone fails the soak."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak import verdict
from benchmarks.soak.clients import HELD, LOST, STATUS, WRONG
from benchmarks.soak.probe import Health
from benchmarks.soak.tally import Tally
from benchmarks.soak.verdict import Observed

SECONDS = 600


def memory(growth):
    """Memory that rises steeply for a minute, and then evenly by a share to the end."""
    flat = 60
    return [
        (at, int(1e9 * (at / flat if at < flat else 1 + growth * (at - flat) / (SECONDS - flat))))
        for at in range(SECONDS)
    ]


EMPTY = {"queue": {"requests": 0}}
SOUND = Observed(memory(0.01), Health([0.001] * 99 + [0.049]), 0, EMPTY, 0)


def failed(observed=SOUND, tally=None, seconds=SECONDS):
    tally = tally or Tally()
    tally.ended = tally.began + seconds
    return [check.name for check in verdict.checks(tally, observed) if check.passed is False]


def test_a_sound_run_passes():
    assert failed() == []


@pytest.mark.parametrize("what", [WRONG, LOST, STATUS, HELD])
def test_one_fault_fails(what):
    tally = Tally()
    tally.fault("sound", what, "this one")
    assert failed(tally=tally) == [what]


@pytest.mark.parametrize(
    "change",
    [
        {"memory": memory(0.07)},
        {"health": Health([0.001] * 999 + [0.051])},
        {"health": Health([0.001], Counter({"no answer": 1}))},
        {"health": Health()},
        {"tracebacks": 1},
        {"status": {"queue": {"requests": 1}}},
        {"status": None},
        {"exit_code": 1},
    ],
)
def test_one_observation_fails(change):
    assert len(failed(replace(SOUND, **change))) == 1


def test_memory_of_a_short_run_is_not_judged():
    assert failed(replace(SOUND, memory=memory(9.0)), seconds=120) == []
