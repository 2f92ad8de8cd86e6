"""Sizes and loads that took the memory of other servers, sent to this one."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from segops_client import wire
from tests.service.helpers import MSGPACK, Process, case, post, problem, process

SUM = "/v1/segmented_sum"


@pytest.fixture(scope="module")
def scarce() -> Iterator[Process]:
    """A server with high limits of its own, and one more gigabyte to live on."""
    limits = {"SEGOPS_MAX_SEGMENTS": str(2**31 - 1), "SEGOPS_MAX_OUTPUT_BYTES": str(2**32 - 1)}
    limits["SEGOPS_QUEUE_BYTES"] = str(2**40)
    with process(**limits) as scarce:
        scarce.wait_until_ready()
        post(scarce.client, "segmented_sum", x=np.ones(4), idx=np.zeros(4, "i4"), num_segments=1)
        scarce.limit_memory(2**30)
        yield scarce


def _serves(server: Process) -> bool:
    answer = post(
        server.client, "segmented_sum", x=np.ones(4), idx=np.zeros(4, "i4"), num_segments=1
    )
    return answer["value"].tolist() == [4]


def test_one_request_without_memory_for_it_fails_alone(scarce: Process) -> None:
    fields = {"x": np.ones((4, 3)), "idx": np.zeros(4, "i4"), "num_segments": 2**27}
    response = scarce.client.post(SUM, content=wire.packb(fields), headers=MSGPACK)
    problem(response, 507, "out-of-memory")
    assert _serves(scarce)


def test_requests_that_do_not_fit_together_are_served_or_fail_one_by_one(
    scarce: Process,
) -> None:
    fields = {"x": np.ones(4, "f4"), "idx": np.zeros(4, "i4"), "num_segments": 2**25}
    body = wire.packb(fields)

    def ask(_: int) -> int:
        response = scarce.client.post(SUM, content=body, headers=MSGPACK)
        if response.status_code == 200:
            value = wire.unpackb(response.content)["value"]
            assert (value[0], value[1:].any()) == (4, False)
        else:
            problem(response, 507, "out-of-memory")
        return response.status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = Counter(pool.map(ask, range(64)))
    assert {*statuses} == {200, 507}, statuses
    assert _serves(scarce)
    assert scarce.client.get("/v1/health/ready").status_code == 200


def _peak(server: Process) -> int:
    """Most memory that a server has had, in bytes."""
    status = Path(f"/proc/{server.popen.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**24])
def test_a_number_of_segments_over_the_limits_takes_no_memory(server: Process, count: int) -> None:
    drawn = case("segmented_sum", "float64")
    assert post(server.client, "segmented_sum", **drawn.fields)
    fields = {**drawn.all_fields, "num_segments": count, "want": ["value", "jvp"]}
    del fields["cotangent"]
    before = _peak(server)
    for _ in range(5):
        response = server.client.post(SUM, content=wire.packb(fields), headers=MSGPACK)
        problem(response, 422, "array-too-large")
    assert _peak(server) < before + 2**24


def test_requests_of_ever_new_sizes_do_not_take_ever_more_memory() -> None:
    rng = np.random.default_rng(0)
    with process(SEGOPS_CACHE_SIZE="8") as server:
        server.wait_until_ready()

        def ask(count: int) -> int:
            for _ in range(count):
                rows, segments = int(rng.integers(1, 30_000)), int(rng.integers(1, 30_000))
                x, idx = np.ones(rows, "f4"), rng.integers(0, segments, rows)
                post(server.client, "segmented_sum", x=x, idx=idx, num_segments=segments)
            return _peak(server)

        first = ask(150)
        assert ask(150) < 1.05 * first
        cache = server.client.get("/v1/status").json()["cache"]
        assert cache["entries"] <= 8
