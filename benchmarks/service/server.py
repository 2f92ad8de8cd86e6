"""Servers in processes of their own."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_SERVICE = ("segops_service", "serve")
_BARE = "benchmarks.service.bare"
_SECONDS_TO_START = 120
_SECONDS_TO_STOP = 60
_POLL_SECONDS = 0.01


class Server:
    """A server process that listens on a port of its own and logs to a file.

    Parameters
    ----------
    arguments
        Module to run and its arguments.
    variables
        Environment variables that it gets in addition.
    log
        Where its standard error goes: a file, so that nobody needs to read along.
    """

    def __init__(self, arguments: tuple[str, ...], variables: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.host, self.port = "127.0.0.1", _free_port()
        self.began = time.perf_counter()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env={**os.environ, **variables, "SEGOPS_PORT": str(self.port)},
                stdout=stderr,
                stderr=stderr,
            )
        self._wait_for(self._is_listening)

    @property
    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def wait_until_ready(self) -> float:
        """Wait until requests are computed; return the seconds since the process was started."""
        self._wait_for(lambda: self._get("/v1/health/ready")[0] == 200 or None)
        return time.perf_counter() - self.began

    def status(self) -> dict[str, Any]:
        """Return what the service says of its state."""
        found: dict[str, Any] = json.loads(self._get("/v1/status")[1])
        return found

    def metadata(self) -> dict[str, Any]:
        """Return what the service says of itself."""
        found: dict[str, Any] = json.loads(self._get("/v1/metadata")[1])
        return found

    def stop(self) -> int:
        """Ask the process to end, and return its exit code."""
        self.process.terminate()
        return self.process.wait(_SECONDS_TO_STOP)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _is_listening(self) -> bool | None:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0 or None

    def _wait_for(self, condition: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + _SECONDS_TO_START
        while (found := condition()) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
            time.sleep(_POLL_SECONDS)
        return found


@contextmanager
def service(**variables: str) -> Iterator[Server]:
    """Run the service with settings from the environment until the context ends."""
    with _running(_SERVICE, variables) as server:
        yield server


@contextmanager
def bare(reply_bytes: int, log_level: str = "info") -> Iterator[Server]:
    """Run the yardstick until the context ends; at ``info`` it logs a line a request."""
    with _running((_BARE, str(reply_bytes), log_level), {}) as server:
        yield server


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _running(arguments: tuple[str, ...], variables: Mapping[str, str]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        server = Server(arguments, variables, Path(directory) / "log")
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()
