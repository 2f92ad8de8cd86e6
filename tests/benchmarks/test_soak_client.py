"""What the harness's client makes of a server that misbehaves."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from benchmarks.service import problems
from benchmarks.soak import pool
from benchmarks.soak.clients import LOST, STATUS, WRONG, Client
from benchmarks.soak.tally import Tally
from segops_client import wire
from tests.benchmarks.scripted import answer, serving

PROBLEM = problems.draw("segmented_sum", 20, 4, dtype="float64")
RIGHT = wire.packb(PROBLEM.expected())


def document(slug: str) -> bytes:
    return json.dumps({"type": f"urn:segops:problem:{slug}"}).encode()


def outcome(act: Callable[[Client], Awaitable[None]], *replies: bytes) -> tuple[Tally, str]:
    """What a client counts where the server sends these replies, and then closes."""
    tally = Tally()

    async def run():
        async with serving(replies) as (host, port):
            rng = np.random.default_rng(0)
            client = Client(host, port, [pool.make(PROBLEM)], tally, rng, patience=0.3)
            await act(client)
            client.close()

    asyncio.run(run())
    ((_, what),) = tally.outcomes
    return tally, what


@pytest.mark.parametrize("act", [Client.sound, Client.late])
def test_a_right_answer_is_counted_as_right(act):
    tally, what = outcome(act, answer(200, RIGHT))
    assert what == "200 right"
    assert not tally.faults


@pytest.mark.parametrize("act", [Client.sound, Client.late])
def test_a_wrong_answer_is_seen(act):
    wrong = wire.packb({"value": np.zeros((4, 3))})
    tally, _ = outcome(act, answer(200, wrong))
    assert tally.faults == {WRONG: 1}
    assert "value is off" in tally.examples[0]


@pytest.mark.parametrize("act", [Client.sound, Client.late, Client.malformed])
@pytest.mark.parametrize(
    "reply",
    [[], [answer(200, RIGHT)[:-1]], [b"nonsense\r\n\r\n"]],
    ids=["nothing", "part of it", "no HTTP"],
)
def test_a_lost_answer_is_seen(act, reply):
    assert outcome(act, *reply)[0].faults == {LOST: 1}


@pytest.mark.parametrize("act", [Client.sound, Client.late, Client.malformed])
def test_an_answer_that_never_comes_is_seen(act):
    assert outcome(act, b"")[0].faults == {LOST: 1}


@pytest.mark.parametrize("act", [Client.sound, Client.late, Client.malformed])
@pytest.mark.parametrize("status", [500, 502, 503, 507, 404])
def test_an_unexpected_status_is_seen(act, status):
    reply = answer(status, document("not-ready"))
    assert outcome(act, reply)[0].faults == {STATUS: 1}


def test_success_of_a_malformed_request_is_seen():
    assert outcome(Client.malformed, answer(200, RIGHT))[0].faults == {STATUS: 1}


def test_a_deadline_of_a_request_without_one_is_seen():
    reply = answer(503, document("deadline-exceeded"))
    assert outcome(Client.sound, reply)[0].faults == {STATUS: 1}


def test_intended_refusals_are_no_faults():
    late = answer(503, document("deadline-exceeded"))
    busy = answer(429, document("overloaded"), retry_after="1")
    assert outcome(Client.late, late)[1] == "503 deadline-exceeded"
    assert outcome(Client.sound, busy)[1] == "429 overloaded"


def test_overload_that_says_not_when_to_come_back_is_seen():
    assert outcome(Client.sound, answer(429, document("overloaded")))[0].faults == {STATUS: 1}
