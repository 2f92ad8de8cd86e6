"""Connections: limits of size and time, large bodies, and answers in the application's place."""

import gc
import json
import os
import socket
import time

import pytest

from segops_service.upload import SMALLEST
from tests.service.raw import (
    LARGE_ANSWER,
    Client,
    Echo,
    Response,
    echoed,
    head,
    listening,
    resident,
)

LARGE = os.urandom(1_000_003)
QUICK = {"transfer_grace_seconds": 0.3, "transfer_bytes_per_second": 20_000}


@pytest.fixture
def app() -> Echo:
    return Echo()


def refusal(client: Client, status: int, slug: str) -> Response:
    """Read an answer that was given in the application's place, and the end behind it."""
    response = client.response()
    document = json.loads(response.content)
    assert (response.status, document["status"]) == (status, status), document
    assert document["type"] == f"urn:segops:problem:{slug}"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["connection"] == "close"
    assert client.is_closed_within(2)
    return response


# The head of a request


@pytest.mark.parametrize("begin", [b"POST / HT", b"POST / HTTP/1.1\r\nHost: here\r\n", b"\r\n"])
def test_a_head_that_stops_is_refused(app: Echo, begin: bytes) -> None:
    with listening(app, header_seconds=0.2) as server, Client(server.port) as client:
        client.send(begin)
        refusal(client, 408, "request-timeout")


def test_a_head_that_drips_is_refused(app: Echo) -> None:
    with listening(app, header_seconds=0.3) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nX-Long: ")
        client.drip(b"x", every=0.05, seconds=2)
        refusal(client, 408, "request-timeout")


def test_a_connection_that_sends_nothing_is_closed(app: Echo) -> None:
    with listening(app, header_seconds=0.2) as server, Client(server.port) as client:
        assert client.is_closed_within(2)


def test_empty_lines_do_not_keep_an_idle_connection_open(app: Echo) -> None:
    with listening(app, header_seconds=0.3) as server, Client(server.port) as client:
        client.send(head())
        assert client.response().status == 200
        client.drip(b"\r\n", every=0.05, seconds=2)
        refusal(client, 408, "request-timeout")


def test_an_idle_connection_outlives_the_time_of_a_head(app: Echo) -> None:
    with listening(app, header_seconds=0.2) as server, Client(server.port) as client:
        client.send(head())
        client.response()
        assert not client.is_closed_within(0.7)
        client.send(head())
        assert client.response().status == 200


@pytest.mark.parametrize("piece", [100_000, 700])
def test_a_head_over_the_limit_is_refused_before_its_end(app: Echo, piece: int) -> None:
    with listening(app, max_header_bytes=2000) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nX-Long: ")
        client.drip(b"x" * piece, every=0.01, seconds=2)
        refusal(client, 431, "head-too-large")
    assert app.events.empty()


@pytest.mark.parametrize(("more", "status"), [(0, 200), (200, 431)])
def test_a_head_is_measured_without_what_comes_behind_it(app: Echo, more: int, status: int) -> None:
    fields = [f"X-{i}: {'x' * 90}" for i in range(18)] + ["X-More: " + "x" * more]
    body = LARGE[:60_000]
    with listening(app, max_header_bytes=1850) as server, Client(server.port) as client:
        client.send(head("/", len(body), *fields), body)
        response = client.response()
        assert response.status == status
        assert status != 200 or response.content == echoed(body)


def test_trailers_reach_nobody_and_have_an_end(app: Echo) -> None:
    chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
    with listening(app, max_header_bytes=2000) as server, Client(server.port) as client:
        client.send(chunked, b"X-Trailer: 1\r\n\r\n")
        assert client.response().status == 200
        assert [name for name, _ in app.headers] == [b"transfer-encoding"]
        client.send(chunked, b"X-Trailer: ")
        client.drip(b"x" * 900, every=0.01, seconds=2)
        refusal(client, 431, "head-too-large")


def test_extensions_of_a_chunk_have_an_end(app: Echo) -> None:
    with listening(app, max_header_bytes=2000) as server, Client(server.port) as client:
        client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;")
        client.drip(b"x" * 900, every=0.01, seconds=2)
        refusal(client, 431, "head-too-large")


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"CONNECT there:443 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(app: Echo, request_: bytes) -> None:
    with listening(app) as server, Client(server.port) as client:
        client.send(request_)
        refusal(client, 400, "malformed-request")
    assert app.events.empty()


def test_what_follows_a_request_that_is_not_answered_yet_cuts_the_connection(app: Echo) -> None:
    with listening(app) as server, Client(server.port) as client:
        client.send(head("/hold"))
        assert app.next_event() == "begun"
        client.send(b"\x00\x00\r\n\r\n")
        with pytest.raises(ConnectionError):
            client.response()
        app.go.set()
        assert app.next_event() == "ended"


@pytest.mark.parametrize("times", [1, 3])
def test_an_offered_upgrade_is_declined_and_the_body_kept(app: Echo, times: int) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with listening(app) as server, Client(server.port) as client:
        for body in (b"abc", LARGE):
            client.send(*[head("/", len(body), *offer) + body] * times)
            for _ in range(times):
                assert client.response().content == echoed(body)


def test_requests_far_ahead_of_their_answers_cut_the_connection(app: Echo) -> None:
    with listening(app) as server, Client(server.port) as client:
        client.send(head("/hold"), *[head("/")] * 100)
        time.sleep(0.1)
        app.go.set()
        for content in (b"held", *[echoed(b"")] * 100):
            assert client.response().content == content
        app.go.clear()
        client.send(head("/hold"), *[head("/")] * 102)
        with pytest.raises(ConnectionError):
            client.response()
        app.go.set()
        with Client(server.port) as other:
            other.send(head())
            assert other.response().status == 200


# Connections


def test_connections_over_the_limit_are_refused_until_one_closes(app: Echo) -> None:
    with listening(app, max_connections=2) as server, Client(server.port) as first:
        with Client(server.port) as second:
            for client in (first, second):
                client.send(head())
                assert client.response().status == 200
            with Client(server.port) as third:
                third.send(head("/", len(LARGE)), LARGE)
                response = refusal(third, 429, "overloaded")
                assert response.headers["retry-after"] == "1"
        time.sleep(0.1)
        with Client(server.port) as fourth:
            fourth.send(head())
            assert fourth.response().status == 200


def test_refused_connections_are_no_way_round_the_limit(app: Echo) -> None:
    with listening(app, max_connections=1) as server, Client(server.port) as first:
        first.send(head())
        first.response()
        with Client(server.port) as second:
            assert second.response().status == 429
            with Client(server.port) as third, pytest.raises(ConnectionError):
                third.response()


# Bodies


@pytest.mark.parametrize("size", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, len(LARGE)])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_body_arrives_as_it_was_sent(app: Echo, size: int, pieces: int) -> None:
    body = LARGE[:size]
    step = max(1, -(-size // pieces))
    with listening(app) as server, Client(server.port) as client:
        for path in ("/", "/again"):
            client.send(head(path, size))
            for begin in range(0, size, step):
                client.send(body[begin : begin + step])
                time.sleep(0.01 if pieces > 1 else 0)
            response = client.response()
            assert response.status == 200
            assert response.content == echoed(body)
            assert size < SMALLEST or response.headers["x-messages"] == "1"


def test_large_bodies_may_follow_each_other_without_waiting_for_answers(app: Echo) -> None:
    bodies = [LARGE, b"", LARGE[: SMALLEST + 1], b"x", LARGE[::-1]]
    with listening(app) as server, Client(server.port) as client:
        client.send(*(head("/", len(body)) + body for body in bodies))
        for body in bodies:
            assert client.response().content == echoed(body)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_body_counts_with_every_method(app: Echo, method: str) -> None:
    with listening(app) as server, Client(server.port) as client:
        for _ in range(2):
            client.send(head("/", len(LARGE), method=method), LARGE)
            response = client.response(method)
            assert response.status == 200
            assert response.content == (b"" if method == "HEAD" else echoed(LARGE))


def test_four_million_bytes_in_chunks_of_256_arrive(app: Echo) -> None:
    body = LARGE[: 2**18] * 16
    chunks = [b"100\r\n" + body[i : i + 256] + b"\r\n" for i in range(0, len(body), 256)]
    with listening(app) as server, Client(server.port) as client:
        client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n")
        assert client.response().content == echoed(body)


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_a_client_that_waits_for_a_word_gets_it(app: Echo, size: int) -> None:
    body = LARGE[:size]
    with listening(app, **QUICK) as server, Client(server.port) as client:
        client.send(head("/late", size, "Expect: 100-continue"))
        time.sleep(0.3)
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.response().content == echoed(body)


def test_a_client_that_waits_for_a_word_is_spared_a_body_that_is_refused(app: Echo) -> None:
    with listening(app) as server, Client(server.port) as client:
        client.send(head("/refuse", len(LARGE), "Expect: 100-continue"))
        answer = client.socket.recv(1000)
        assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("size", [SMALLEST - 1, len(LARGE), 10_000_000])
def test_an_answer_before_the_end_of_the_body_leaves_the_connection_usable(
    app: Echo, size: int
) -> None:
    with listening(app, max_body_bytes=5_000_000) as server, Client(server.port) as client:
        for _ in range(2):
            client.send(head("/refuse", size), LARGE[:1000])
            assert client.response().status == 413
            client.send(bytes(size - 1000), head("/", 3), b"abc")
            assert client.response().content == echoed(b"abc")


def test_an_answer_before_the_end_of_the_body_is_read_by_who_wants_to_close(app: Echo) -> None:
    with listening(app) as server, Client(server.port) as client:
        client.send(head("/refuse", len(LARGE), "Connection: close"), LARGE[:1000])
        time.sleep(0.2)
        client.send(LARGE[1000:])
        response = client.response()
        assert (response.status, response.content) == (413, b"refused")
        assert client.is_closed_within(2)


def test_a_connection_is_idle_after_a_body_that_nobody_wanted(app: Echo) -> None:
    with listening(app, keep_alive_seconds=1) as server, Client(server.port) as client:
        client.send(head("/refuse", len(LARGE)), LARGE[:1000])
        assert client.response().status == 413
        time.sleep(0.5)
        client.send(LARGE[1000:])
        assert not client.is_closed_within(0.7)
        assert client.is_closed_within(1)


@pytest.mark.parametrize("size", [1000, len(LARGE)])
@pytest.mark.parametrize("sent", [0, 500])
def test_a_hang_up_in_a_body_is_seen_by_the_application(app: Echo, size: int, sent: int) -> None:
    with listening(app) as server:
        with Client(server.port) as client:
            client.send(head("/", size), LARGE[:sent])
            assert app.next_event() == "begun"
        began = time.monotonic()
        assert app.next_event() == "disconnected"
        assert time.monotonic() - began < 0.5


def test_a_body_without_memory_for_it_is_the_application_s_to_answer(app: Echo) -> None:
    size = 2**60
    with listening(app, max_body_bytes=size) as server, Client(server.port) as client:
        client.send(head("/", size), b"x")
        assert client.response().status == 507


def test_declared_bytes_take_no_memory_before_they_come(app: Echo) -> None:
    before = resident()
    with listening(app, max_body_bytes=2**40) as server:
        clients = [Client(server.port) for _ in range(8)]
        for client in clients:
            client.send(head("/", 2**30), b"x")
            assert app.next_event() == "begun"
        time.sleep(0.1)
        assert resident() - before < 64 * 2**20
        for client in clients:
            client.socket.close()


def test_an_answer_before_the_end_of_the_body_frees_its_memory(app: Echo) -> None:
    before = resident()
    size = 256 * 2**20
    with listening(app) as server, Client(server.port) as client:
        client.send(head("/hold", size), bytes(size // 2))
        time.sleep(0.2)
        assert resident() - before > size // 4
        app.go.set()
        assert client.response().content == b"held"
        assert resident() - before < size // 8
        client.send(bytes(size // 2))
        assert resident() - before < size // 8
        client.send(head())
        assert client.response().status == 200


def test_a_hang_up_in_the_middle_of_a_body_frees_its_memory(app: Echo) -> None:
    before, size = resident(), 256 * 2**20
    gc.disable()
    try:
        with listening(app) as server:
            for _ in range(3):
                with Client(server.port) as client:
                    client.send(head("/", size), bytes(size // 2))
                    assert app.next_event() == "begun"
                    time.sleep(0.2)
                assert [app.next_event(), app.next_event()] == ["disconnected", "ended"]
            time.sleep(0.1)
            assert resident() - before < size // 4
    finally:
        gc.enable()


# Rates


@pytest.mark.parametrize("size", [50_000, len(LARGE)])
def test_a_body_that_drips_is_refused_and_its_slot_freed(app: Echo, size: int) -> None:
    with listening(app, **QUICK) as server, Client(server.port) as client:
        client.send(head("/", size), LARGE[:100])
        assert app.next_event() == "begun"
        client.drip(b"x", every=0.05, seconds=3)
        refusal(client, 408, "request-timeout")
        assert app.next_event() == "disconnected"


def test_a_body_that_drips_and_nobody_wants_closes_the_connection(app: Echo) -> None:
    with listening(app, **QUICK) as server, Client(server.port) as client:
        client.send(head("/refuse", len(LARGE)), LARGE[:100])
        assert client.response().status == 413
        assert client.is_closed_within(3)


@pytest.mark.parametrize("size", [50_000, SMALLEST])
def test_a_body_that_keeps_the_rate_is_served(app: Echo, size: int) -> None:
    with listening(app, **QUICK) as server, Client(server.port) as client:
        client.send(head("/", size))
        for begin in range(0, size, 2500):
            client.send(LARGE[begin : min(size, begin + 2500)])
            time.sleep(0.05)
        assert client.response().content == echoed(LARGE[:size])


def test_the_time_in_which_the_server_does_not_read_is_not_the_client_s(app: Echo) -> None:
    chunks = [b"10000\r\n" + LARGE[:0x10000] + b"\r\n"] * 64
    with listening(app, **QUICK) as server, Client(server.port) as client:
        client.send(b"POST /late HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(*chunks, b"0\r\n\r\n")
        assert client.response().status == 200


def test_an_answer_that_is_not_read_is_given_up(app: Echo) -> None:
    with (
        listening(app, **QUICK) as server,
        Client(server.port, receive_buffer=4096) as client,
    ):
        client.send(head("/large"))
        time.sleep(1.2)
        with pytest.raises(ConnectionError):
            client.response()
        assert not server.server_state.connections


def test_an_answer_that_is_read_slowly_but_surely_arrives(app: Echo) -> None:
    with (
        listening(app, transfer_grace_seconds=0.1, transfer_bytes_per_second=10_000) as server,
        Client(server.port, receive_buffer=4096) as client,
    ):
        client.send(head("/large"))
        received = 0
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            received += len(client.socket.recv(2000))
            time.sleep(0.02)
        assert received < 200_000
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        while received < LARGE_ANSWER:
            more = len(client.socket.recv(2**20))
            assert more
            received += more
