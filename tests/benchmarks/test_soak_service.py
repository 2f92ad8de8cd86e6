"""The soak against the real service."""

import pytest

from benchmarks.soak.__main__ import soak


@pytest.mark.slow
def test_the_service_answers_right_under_load_and_faults():
    tally, observed = soak(seconds=5, clients=8, cases=60, seed=1)
    assert not tally.faults, tally.examples
    for outcome in (
        ("sound", "200 right"),
        ("late", "503 deadline-exceeded"),
        ("malformed", "422"),
    ):
        assert tally.outcomes[outcome] > 0
    assert len(observed.health.latencies) > 5
    assert not observed.health.failures
    assert (observed.tracebacks, observed.exit_code) == (0, 0)
    assert observed.status["queue"]["requests"] == 0
