"""A server in a process of its own."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from segops_client import Client, SegopsError

HOST = "127.0.0.1"
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 30.0
POLL_SECONDS = 0.1


@contextmanager
def serving() -> Iterator[str]:
    """Run a server on a free port and yield its address once it is ready."""
    port = _free_port()
    command = [sys.executable, "-m", "segops_service", "serve", "--host", HOST, "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://{HOST}:{port}"
            _wait_until_ready(url, process, log)
            yield url
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: IO[str]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    with Client(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            if _is_ready(client):
                return
            time.sleep(POLL_SECONDS)
    log.seek(0)
    raise RuntimeError(f"the server did not become ready; it said:\n{log.read()}")


def _is_ready(client: Client) -> bool:
    try:
        return client.health().ready
    except SegopsError:  # it does not listen yet
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
