"""Each limit is kept on both of its sides."""

import msgpack
import numpy as np
import pytest

from segops_client.wire import Limits, WireError, packb, unpackb


def refused(body, limits):
    with pytest.raises(WireError) as caught:
        unpackb(body, limits=limits)
    return caught.value


def test_a_message_may_have_max_bytes_and_no_more():
    body = packb({"x": np.zeros(100)})
    assert unpackb(body, limits=Limits(max_bytes=len(body)))["x"].size == 100
    assert refused(body, Limits(max_bytes=len(body) - 1)).field == ""


def test_an_array_may_have_max_array_bytes_and_no_more():
    body = packb({"x": np.zeros(100)})
    assert unpackb(body, limits=Limits(max_array_bytes=800))["x"].size == 100
    assert refused(body, Limits(max_array_bytes=799)).field == "x.data"


def test_an_empty_array_cannot_claim_a_dimension_beyond_the_limit():
    body = packb({"x": np.zeros((1000, 0))})
    assert refused(body, Limits(max_array_bytes=999)).field == "x.shape"


def test_a_string_may_have_max_text_bytes_and_no_more():
    body = packb({"s": "é" * 10})
    assert unpackb(body, limits=Limits(max_text_bytes=20))["s"] == "é" * 10
    assert refused(body, Limits(max_text_bytes=19)).field == "s"


def test_a_message_may_nest_to_max_depth_and_no_deeper():
    body = packb({"a": [[1]]})
    assert unpackb(body, limits=Limits(max_depth=3)) == {"a": [[1]]}
    assert refused(body, Limits(max_depth=2)).field == "a[0]"


def test_items_are_counted_over_the_whole_message():
    body = packb([[1, 2], {"a": [3]}])
    assert unpackb(body, limits=Limits(max_items=7)) == [[1, 2], {"a": [3]}]
    assert refused(body, Limits(max_items=6)).field == "[1].a"


def test_array_data_does_not_count_as_items():
    assert unpackb(packb(np.zeros(10_000)), limits=Limits(max_items=20)).size == 10_000


@pytest.mark.parametrize("depth", [0, -1, 65, 10**6])
def test_a_depth_that_could_exhaust_the_stack_cannot_be_asked_for(depth):
    with pytest.raises(ValueError, match="max_depth"):
        Limits(max_depth=depth)


def test_the_deepest_limit_is_within_the_stack():
    body = msgpack.packb(None)
    for _ in range(64):
        body = b"\x91" + body
    assert unpackb(body, limits=Limits(max_depth=64))
    assert refused(b"\x91" + body, Limits(max_depth=64)).field == "[0]" * 64
