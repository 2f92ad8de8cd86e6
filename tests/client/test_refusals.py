"""What the service refuses by a request's head arrives as its error, however long the body is."""

import numpy as np
import pytest

from segops_client import Client, Overloaded, Unauthorized
from tests.client.helpers import service

SMALL = np.ones(2, "f4"), [0, 0], 1
LARGE = np.ones(2**23, "f4"), np.zeros(2**23, "i8"), 1
BYTES = {"small": SMALL, "large": LARGE}


@pytest.fixture(scope="module")
def url():
    with service(SEGOPS_TOKENS="secret,second", SEGOPS_QUEUE_BYTES="1000000") as url:
        yield url


@pytest.mark.parametrize("call", BYTES.values(), ids=BYTES.keys())
@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_a_token_that_is_let_in_a_call_is_unauthorized(url, call, token):
    with Client(url, token=token) as client, pytest.raises(Unauthorized) as caught:
        client.segmented_sum(*call)
    assert caught.value.status == 401


@pytest.mark.parametrize("token", ["secret", "second"])
def test_with_a_token_a_call_is_answered(url, token):
    with Client(url, token=token) as client:
        assert client.segmented_sum(*SMALL) == [2]


def test_a_call_that_there_is_no_room_for_is_overloaded_and_says_when_to_return(url):
    with Client(url, token="secret", retries=1) as client:
        with pytest.raises(Overloaded) as caught:
            client.segmented_sum(*LARGE)
        assert caught.value.retry_after == 1
        assert client.segmented_sum(*SMALL) == [2]
