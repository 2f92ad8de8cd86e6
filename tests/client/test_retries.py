"""A request is repeated where nothing was computed, a bounded number of times, and only there."""

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import numpy as np
import pytest

from segops_client import (
    Client,
    ConnectionFailed,
    Overloaded,
    RequestTimeout,
    ServiceError,
    TransportError,
)
from segops_client._retries import Retries
from tests.client.helpers import Script, free_port, packed, problem, serve

X = np.ones(2, "f4")
IDX = np.array([0, 1])
ANSWER = packed({"value": X})
AT_ONCE = {"retry-after": "0"}


def call(url, **options):
    with Client(url, **options) as client:
        return client.segmented_sum(X, IDX, 2)


@pytest.mark.parametrize(("status", "slug"), [(429, "overloaded"), (503, "not-ready")])
def test_a_busy_service_is_asked_again_with_the_same_body(status, slug, play):
    script = Script([problem(status, slug, headers=AT_ONCE), ANSWER])
    np.testing.assert_array_equal(call(play(script)), X)
    first, second = script.received
    assert first.body == second.body


def test_repeats_are_bounded_and_the_last_answer_is_raised(play):
    script = Script([problem(503, "not-ready", headers=AT_ONCE)])
    with pytest.raises(ServiceError):
        call(play(script), retries=3)
    assert len(script.received) == 4


@pytest.mark.parametrize(
    ("status", "slug"),
    [
        (401, "unauthorized"),
        (408, "request-timeout"),
        (413, "body-too-large"),
        (422, "invalid-argument"),
        (500, "internal"),
        (503, "deadline-exceeded"),
        (507, "out-of-memory"),
    ],
)
def test_an_error_that_would_come_again_is_not_repeated(status, slug, play):
    script = Script([problem(status, slug, headers=AT_ONCE), ANSWER])
    with pytest.raises(ServiceError):
        call(play(script))
    assert len(script.received) == 1


def test_refusals_of_every_kind_spend_one_budget(play):
    busy, starting = (
        problem(429, "overloaded", headers=AT_ONCE),
        problem(503, "not-ready", headers=AT_ONCE),
    )
    script = Script([busy, starting, busy, ANSWER])
    with pytest.raises(Overloaded):
        call(play(script), retries=2)
    assert len(script.received) == 3


@pytest.mark.parametrize(("status", "slug"), [(429, "overloaded"), (503, "not-ready")])
def test_the_pause_that_the_service_asks_for_is_kept(status, slug, play):
    script = Script([problem(status, slug, headers={"retry-after": "1"}), ANSWER])
    begin = time.monotonic()
    call(play(script))
    assert time.monotonic() - begin >= 1


def test_a_service_that_starts_while_it_is_called_is_reached():
    port, script = free_port(), Script([ANSWER])
    done = threading.Event()

    def start_late():
        time.sleep(0.2)
        with serve(script, port):
            done.wait(30)

    thread = threading.Thread(target=start_late)
    thread.start()
    try:
        np.testing.assert_array_equal(call(f"http://127.0.0.1:{port}", retries=5), X)
    finally:
        done.set()
        thread.join()


def test_nobody_there_is_a_connection_error_that_names_the_address():
    port = free_port()
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}") as caught:
        call(f"http://127.0.0.1:{port}", retries=0)
    assert isinstance(caught.value, ConnectionFailed)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_health_of_a_service_that_is_not_there_raises_at_once():
    begin = time.monotonic()
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, retries=5) as client, pytest.raises(ConnectionFailed):
        client.health()
    assert time.monotonic() - begin < 0.5


def test_an_answer_that_takes_too_long_is_a_timeout_and_computed_once(play):
    def slow():
        time.sleep(0.6)
        return ANSWER

    script = Script([slow])
    timeout = httpx.Timeout(5, read=0.2)
    with pytest.raises(TimeoutError) as caught:
        call(play(script), timeout=timeout)
    assert isinstance(caught.value, RequestTimeout)
    assert len(script.received) == 1


def test_a_connection_lost_during_the_answer_is_not_repeated():
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            listener.settimeout(1)
            try:
                while True:
                    connection = listener.accept()[0]
                    accepted.append(connection.recv(65536))
                    connection.close()
            except TimeoutError:
                return

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(TransportError) as caught:
                call(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            thread.join()
    assert not isinstance(caught.value, ConnectionFailed)
    assert len(accepted) == 1


def test_clients_that_were_asked_to_wait_do_not_return_together():
    pauses = [Retries(1).pause(response(429, "10"), 0) for _ in range(200)]
    assert 10 <= min(pauses) < max(pauses) <= 12.5
    assert Retries(1).pause(response(429, "0"), 0) == 0


def response(status, retry_after=None):
    return httpx.Response(status, headers={"retry-after": retry_after} if retry_after else {})


def test_pauses_grow_are_scattered_and_stay_bounded():
    retries = Retries(1000)
    for attempt, longest in [(0, 0.5), (1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (999, 8)]:
        pauses = [retries.pause(response(503), attempt) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_a_date_to_retry_after_is_understood():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 18 < Retries(1).pause(response(503, later), 0) <= 25
    assert Retries(1).pause(response(503, "Wed, 21 Oct 2015 07:28:00 GMT"), 0) == 0


@pytest.mark.parametrize("nonsense", ["soon", "-5", "1e3", "nan", "99 Foo"])
def test_nonsense_in_retry_after_falls_back_to_growing_pauses(nonsense):
    assert 0.25 <= Retries(1).pause(response(503, nonsense), 0) <= 0.5


def test_a_service_that_asks_for_an_hour_is_not_waited_for():
    assert Retries(1).pause(response(503, "3600"), 0) is None
