"""The client's time limit reaches the service: nothing is computed for nobody, or twice."""

import contextlib
import socket
import time

import httpx
import numpy as np
import pytest

import segops
from segops_client import Client, DeadlineExceeded
from tests.client.helpers import service

X = np.random.default_rng(0).standard_normal((3000, 3)).astype("f4")
IDX = np.arange(3000) % 50
HASTY = httpx.Timeout(5, read=0.02)  # shorter than any compilation


class Patient(httpx.HTTPTransport):
    """Waits longer to read than the service is told, so that only the service can end the wait."""

    def handle_request(self, request):
        request.extensions["timeout"]["read"] = 60
        return super().handle_request(request)


@pytest.fixture(scope="module")
def url():
    """Serve from one device, so with one queue; it waits a second for what is arriving."""
    with service(XLA_FLAGS="", SEGOPS_BATCH_DELAY_SECONDS="1") as url:
        yield url


@contextlib.contextmanager
def arriving(url):
    """Keep a request on its way, so that the service waits for it before it computes others."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(
            b"POST /v1/segmented_sum HTTP/1.1\r\nhost: test\r\n"
            b"content-type: application/vnd.msgpack\r\ncontent-length: 100\r\n\r\n"
        )
        while not status(url)["queue"]["arriving"]:
            pass
        yield


def status(url):
    return httpx.get(f"{url}/v1/status").json()


def computed(url):
    (device,) = status(url)["devices"]
    return device["requests"]


def test_calls_that_time_out_while_a_function_is_compiled_compile_it_once(url):
    compiled, timeouts, product = status(url)["cache"]["misses"], 0, None
    with Client(url, timeout=HASTY) as client:
        while product is None and timeouts < 500:
            try:
                product = client.hvp("segmented_rms_norm", X, IDX, 50, tangents={"x": X})
            except TimeoutError:
                timeouts += 1
    expected = segops.hvp("segmented_rms_norm", X, IDX, 50, tangents={"x": X})
    np.testing.assert_array_equal(product["x"], np.asarray(expected["x"]))
    assert timeouts > 0
    assert status(url)["cache"]["misses"] == compiled + 1


def test_a_call_whose_time_passes_in_the_queue_is_answered_at_once_and_not_computed(url):
    call = X, IDX, 50
    with Client(url) as client, Client(url, timeout=0.1, transport=Patient(), retries=5) as hasty:
        client.segmented_sum(*call)
        before = computed(url)
        with arriving(url):
            begin = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                hasty.segmented_sum(*call)
            assert time.monotonic() - begin < 0.5
            client.segmented_sum(*call)
            assert time.monotonic() - begin > 1  # so long was the queue held
        assert computed(url) == before + 1


def test_a_call_whose_time_passes_during_its_upload_is_answered_before_its_end(url):
    with (
        Client(url, timeout=httpx.Timeout(60, read=0.005), transport=Patient()) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.segmented_sum(np.ones(2**23, "f4"), np.zeros(2**23, "i8"), 1)
    assert status(url)["queue"]["requests"] == 0
