"""The server as a whole: its end by signals, and TLS."""

import asyncio
import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from segops_service import Settings
from segops_service.server import Server, TlsError
from tests.service.helpers import serving
from tests.service.raw import Client, Echo, echoed, head, listening

LARGE = os.urandom(1_000_003)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def app() -> Echo:
    return Echo()


@dataclass
class Process:
    """The tiny application in a process of its own."""

    popen: subprocess.Popen[str]
    port: int

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the rest of the log."""
        _, log = self.popen.communicate(timeout=20)
        return self.popen.returncode, log


@contextmanager
def process(files: int = 1024, **variables: str) -> Iterator[Process]:
    command = f"ulimit -S -n {files} && exec {sys.executable} -m tests.service.raw"
    popen = subprocess.Popen(
        ["bash", "-c", command],
        env={**os.environ, "SEGOPS_PORT": "0", **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Process(popen, _port(popen))
    finally:
        popen.kill()
        popen.communicate()


def _port(popen: "subprocess.Popen[str]") -> int:
    assert popen.stderr is not None
    for line in popen.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("it did not start")


def test_a_low_limit_of_open_files_is_raised_for_the_connections() -> None:
    with process(files=64) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port)) for _ in range(100)]
        for client in clients:
            client.send(head())
            assert client.response().status == 200


# The end


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_requests_finish_and_exits_with_0(stop: signal.Signals) -> None:
    with process() as server, Client(server.port) as client:
        client.send(head("/late", len(LARGE)), LARGE[:1000])
        time.sleep(0.1)
        server.popen.send_signal(stop)
        assert server.popen.stdout is not None
        assert server.popen.stdout.readline() == "draining\n"
        client.send(LARGE[1000:])
        response = client.response()
        assert (response.status, response.content) == (200, echoed(LARGE))
        assert response.headers["connection"] == "close"
        code, log = server.end()
    assert code == 0
    assert "Traceback" not in log


def test_a_signal_under_full_load_resets_nobody() -> None:
    with process() as server:
        drivers = [_Driver(server.port, LARGE if i % 4 else b"abc") for i in range(16)]
        time.sleep(0.4)
        server.popen.send_signal(signal.SIGTERM)
        for driver in drivers:
            driver.join()
        code, log = server.end()
    assert code == 0
    assert "Traceback" not in log
    for driver in drivers:
        assert driver.error is None
        assert driver.answers > 1
        assert driver.was_asked_to_close


class _Driver(threading.Thread):
    """Sends request after request over one connection until the server asks to close it."""

    def __init__(self, port: int, body: bytes) -> None:
        super().__init__()
        self.client = Client(port)
        self.body = body
        self.answers = 0
        self.was_asked_to_close = False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.client as client:
                while not self.was_asked_to_close:
                    client.send(head("/", len(self.body)), self.body)
                    response = client.response()
                    assert response.content == echoed(self.body)
                    self.answers += 1
                    self.was_asked_to_close = response.headers.get("connection") == "close"
                assert client.is_closed_within(5)
        except BaseException as error:
            self.error = error


def test_an_upload_that_stalls_does_not_hold_up_the_end() -> None:
    with process(SEGOPS_SHUTDOWN_SECONDS="1") as server, Client(server.port) as client:
        client.send(head("/", len(LARGE)), LARGE[:1000])
        time.sleep(0.1)
        began = time.monotonic()
        server.popen.send_signal(signal.SIGTERM)
        code, log = server.end()
        assert time.monotonic() - began < 3
    assert code == 0
    assert "Traceback" not in log
    assert "cut off" in log


def test_a_second_interrupt_waits_for_nothing() -> None:
    with process() as server, Client(server.port) as client:
        client.send(head("/sleep"))
        time.sleep(0.1)
        server.popen.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.popen.poll() is None
        began = time.monotonic()
        server.popen.send_signal(signal.SIGINT)
        code, _ = server.end()
        assert time.monotonic() - began < 2
    assert code not in (0, None)


def test_an_idle_connection_is_served_a_moment_longer(app: Echo) -> None:
    drained = threading.Event()
    with listening(app, drained.set) as server, Client(server.port) as client:
        client.send(head())
        assert "connection" not in client.response().headers
        server.should_exit = True
        assert drained.wait(2)
        time.sleep(0.2)
        client.send(head("/", len(LARGE)), LARGE)
        response = client.response()
        assert response.content == echoed(LARGE)
        assert response.headers["connection"] == "close"
        assert client.is_closed_within(2)


def test_idle_connections_hold_up_the_end_only_for_that_moment(app: Echo) -> None:
    with listening(app) as server, Client(server.port) as used, Client(server.port) as fresh:
        used.send(head())
        assert used.response().status == 200
        server.should_exit = True
        began = time.monotonic()
        assert used.is_closed_within(2)
        assert fresh.is_closed_within(2)
        assert time.monotonic() - began < 1.5


def test_a_request_that_does_not_end_is_given_up_in_time(app: Echo) -> None:
    began = time.monotonic()
    with listening(app, shutdown_seconds=0) as server, Client(server.port) as client:
        client.send(head("/", 5))
        assert app.next_event() == "begun"
    assert app.next_event() == "disconnected"
    assert time.monotonic() - began < 2


def test_a_signal_before_it_listens_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    class Impatient(Echo):
        async def _lifespan(self, receive: Any, send: Any) -> None:
            server.handle_exit(signal.SIGTERM, None)
            await asyncio.sleep(0.05)
            await super()._lifespan(receive, send)

    drained: list[int] = []
    server = Server(Impatient(), Settings(port=0), lambda: drained.append(1))
    thread = threading.Thread(target=server.run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert drained == [1]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# The whole service


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_body_that_does_not_come_frees_the_request_s_place(hangs_up: bool) -> None:
    settings = Settings(transfer_grace_seconds=60 if hangs_up else 0.1)
    with serving(settings) as http, Client(http.base_url.port) as client:
        fields = ("Content-Type: application/msgpack",)
        client.send(head("/v1/segmented_sum", len(LARGE), *fields), LARGE[:1000])
        assert under_way(http, 1) == (1, len(LARGE))
        if hangs_up:
            client.socket.close()
        else:
            assert client.response().status == 408
        assert under_way(http, 0) == (0, 0)


def under_way(http: httpx.Client, expected: int) -> tuple[int, int]:
    """Wait for a number of requests under way, but not for long; return it and their bytes."""
    end = time.monotonic() + 0.5
    while True:
        queue = http.get("/v1/status").json()["queue"]
        if queue["requests"] == expected or time.monotonic() > end:
            return queue["requests"], queue["bytes"]


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: Any) -> dict[str, Path]:
    """Settings of a certificate for the loopback."""
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    paths = {"tls_certificate": folder / "chain.pem", "tls_key": folder / "key.pem"}
    paths["tls_certificate"].write_bytes(b"".join(b.bytes() for b in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(paths["tls_key"])
    return paths


@pytest.fixture(scope="module")
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_bodies_and_early_answers_pass_through_tls(
    app: Echo, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    with (
        listening(app, **certificate) as server,
        Client(server.port, tls=trust) as client,
    ):
        for body in (b"abc", LARGE):
            client.send(head("/", len(body)), body)
            response = client.response()
            assert response.content == echoed(body)
            client.send(head("/refuse", len(body)), body)
            assert client.response().status == 413
        bodies = [LARGE, b"x", LARGE[::-1]]
        client.send(*(head("/", len(body)) + body for body in bodies))
        for body in bodies:
            assert client.response().content == echoed(body)
        client.send(head("/large"))
        assert client.response().status == 200


def test_a_slow_sender_is_refused_through_tls(
    app: Echo, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    with (
        listening(app, transfer_grace_seconds=0.2, **certificate) as server,
        Client(server.port, tls=trust) as client,
    ):
        client.send(head("/", len(LARGE)), LARGE[:1000])
        assert client.response().status == 408
        assert app.next_event() == "begun"
        assert app.next_event() == "disconnected"


def test_a_handshake_that_does_not_come_is_not_waited_for(
    app: Echo, certificate: dict[str, Path]
) -> None:
    with (
        listening(app, header_seconds=0.3, **certificate) as server,
        Client(server.port) as client,
    ):
        assert client.is_closed_within(2)


def test_idle_tls_connections_do_not_hold_up_the_end(
    app: Echo, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    with listening(app, **certificate) as server, Client(server.port, tls=trust) as client:
        client.send(head())
        assert client.response().status == 200
        began = time.monotonic()
        server.should_exit = True
        while server.server_state.connections:
            assert time.monotonic() - began < 2
            time.sleep(0.05)


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_a_certificate_and_its_key_are_of_use_only_together(
    app: Echo, certificate: dict[str, Path], name: str
) -> None:
    with pytest.raises(TlsError, match="together"):
        Server(app, Settings(**{name: certificate[name]}), lambda: None)


def test_a_key_of_another_certificate_is_named(
    app: Echo, certificate: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    settings = Settings(tls_certificate=certificate["tls_certificate"], tls_key=other)
    with pytest.raises(TlsError, match=r"other\.pem"):
        Server(app, settings, lambda: None)
