"""Structured search: ``python -m tests.fuzz.structured SECONDS`` draws damaged requests."""

import sys
import time

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.bounds import bound_memory
from tests.fuzz.properties import check_json, check_msgpack, check_wire
from tests.fuzz.strategies import JSON, MSGPACK

draw = settings(
    max_examples=1000,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


@draw
@given(MSGPACK | st.binary(max_size=300))
def search_wire(data: bytes) -> None:
    check_wire(data)


@draw
@given(MSGPACK)
def search_msgpack(data: bytes) -> None:
    check_msgpack(data)


@draw
@given(JSON)
def search_json(data: bytes) -> None:
    check_json(data)


def main(seconds: float) -> None:
    bound_memory()
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        search_wire()
        search_msgpack()
        search_json()
        rounds += 1
    print(f"{rounds * 3 * draw.max_examples} requests were decoded or refused")


if __name__ == "__main__":
    main(float(sys.argv[1]))
