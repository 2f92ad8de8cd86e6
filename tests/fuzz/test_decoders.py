"""A short search for input that breaks a decoder; ``make fuzz`` goes on for longer."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES, check_json, check_msgpack, check_wire
from tests.fuzz.seeds import json_seeds, msgpack_seeds
from tests.fuzz.strategies import JSON, MSGPACK

SEEDS = {"wire": msgpack_seeds(), "msgpack": msgpack_seeds(), "json": json_seeds()}
EACH = [(name, number) for name, seeds in SEEDS.items() for number in range(len(seeds))]

search = settings(max_examples=1500, deadline=None)


@pytest.mark.parametrize(("name", "number"), EACH)
def test_a_known_message_is_decoded_or_refused_in_little_memory(name: str, number: int) -> None:
    message = SEEDS[name][number]
    tracemalloc.start()
    try:
        PROPERTIES[name](message)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20 + 16 * len(message)


@search
@given(MSGPACK | st.binary(max_size=100))
def test_a_message_is_decoded_or_refused(data: bytes) -> None:
    check_wire(data)


@search
@given(MSGPACK)
def test_a_msgpack_body_is_a_request_or_refused(data: bytes) -> None:
    check_msgpack(data)


@search
@given(JSON)
def test_a_json_body_is_a_request_or_refused(data: bytes) -> None:
    check_json(data)
