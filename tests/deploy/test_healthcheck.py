"""The container's health check against a server that answers well, ill, or not at all."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme


@contextmanager
def server(
    status: int, tls: ssl.SSLContext | None = None, token: str | None = None
) -> Iterator[int]:
    """Answer the readiness route with `status`, any other with 404; yields the port."""
    expected = None if token is None else f"Bearer {token}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["authorization"] == expected
            found = self.path == "/v1/health/ready"
            self.send_response(status if allowed and found else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


def check(root: Path, port: int, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        **variables,
        "SEGOPS_PORT": str(port),
        "http_proxy": "http://127.0.0.1:9",  # a proxy is none of the check's business
    }
    command = [sys.executable, root / "deploy" / "healthcheck.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (500, 1)])
def test_only_a_ready_service_is_healthy(root: Path, status: int, code: int) -> None:
    with server(status) as port:
        done = check(root, port)
    assert (done.returncode, done.stderr) == (code, "")


def test_silent_port_is_unhealthy_without_a_traceback(root: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = check(root, unused.getsockname()[1])
    assert (done.returncode, done.stderr) == (1, "")


def test_a_service_with_tls_is_asked_over_tls_whatever_name_it_has(root: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("segops.example").configure_cert(context)
    with server(200, tls=context) as port:
        done = check(root, port, SEGOPS_TLS_CERTIFICATE="chain.pem")
        assert (done.returncode, done.stderr) == (0, "")
        assert check(root, port).returncode == 1


def test_a_service_that_asks_for_a_token_gets_its_own(root: Path) -> None:
    with server(200, token="second-to-none") as port:
        done = check(root, port, SEGOPS_TOKENS="second-to-none, another")
        assert (done.returncode, done.stderr) == (0, "")
        assert check(root, port).returncode == 1
