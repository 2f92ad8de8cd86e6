"""Whether the load generator notices answers that differ, fail or do not come."""

import asyncio
from collections.abc import Iterable
from itertools import chain, repeat

import pytest

from benchmarks.service import checks, load, problems
from benchmarks.service.connection import request
from benchmarks.service.load import Load, Order
from segops_client import wire
from tests.benchmarks.scripted import answer, serving

PROBLEM = problems.draw("segmented_sum", 20, 4, dtype="float64")
BODY = wire.packb(PROBLEM.expected())
RIGHT = answer(200, BODY)
MESSAGE = request("/v1/segmented_sum", PROBLEM.pack())


def generate(replies: Iterable[bytes]) -> Load:
    async def run():
        async with serving(replies) as (host, port):
            return await load.put_on(Order(host, port, [MESSAGE], 1, 0.2))

    return asyncio.run(run())


def test_right_answers_have_no_faults():
    result = generate(repeat(RIGHT))
    assert len(result.latencies) == result.statuses[200] > 1
    assert checks.faults([PROBLEM], [result]) == ()


def test_an_answer_that_changes_is_seen():
    result = generate(chain([RIGHT, answer(200, BODY[:-1] + b"\x00")], repeat(RIGHT)))
    assert "1 answers changed" in checks.faults([PROBLEM], [result])


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_failure_is_seen(status):
    result = generate(chain([RIGHT, answer(status, b"")], repeat(RIGHT)))
    assert f"1 answers {status}" in checks.faults([PROBLEM], [result])


def test_a_connection_that_ends_is_seen():
    assert "1 answers lost" in checks.faults([PROBLEM], [generate([RIGHT])])


def test_a_wrong_answer_is_seen():
    wrong = wire.packb({"value": PROBLEM.expected()["value"] + 1})
    (fault,) = checks.faults([PROBLEM], [generate(repeat(answer(200, wrong)))])
    assert "value is off" in fault
