"""The server: uvicorn on uvloop and httptools, with limits for its clients and a clean end."""

import asyncio
import logging
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from socket import socket
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from segops_service.protocol import SWEEP_SECONDS, Connection, Connections
from segops_service.settings import Settings

_log = logging.getLogger(__name__)

_TLS_GOODBYE_SECONDS = 5
_LAST_SECONDS = 1
"""What the application gets to see that its last clients were cut off."""

_OTHER_FILES = 1024
"""Files that the rest of the process may want to open, such as those of compilers."""


class TlsError(Exception):
    """The certificate or its key cannot be used."""


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, then finishes what was accepted.

    Parameters
    ----------
    app
        The application.
    settings
        Where to listen, and the limits to keep.
    on_drain
        Called on the event loop when the end begins, before anything else of it.
    on_refusal
        Called with the slug of the problem where a connection refuses a request by itself.

    Raises
    ------
    TlsError
        If the certificate or its key cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        on_drain: Callable[[], None],
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(_config(app, settings))
        self.server_state: Connections = Connections(settings, on_refusal)
        self.servers = []  # for a signal that comes before it listens
        self._settings = settings
        self._on_drain = on_drain

    @property
    def port(self) -> int:
        """Port that it listens on, once it is started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def run(self, sockets: list[socket] | None = None) -> None:
        """Serve; return when all is over."""
        with asyncio.Runner(loop_factory=partial(_Loop, self._settings)) as runner:
            runner.run(self.serve(sockets))

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Serve on the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._sweep()
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Finish what was accepted, within the time that the settings give."""
        self._drain()
        cut_off = self._loop.call_later(self._settings.shutdown_seconds, self._cut_off)
        await super().shutdown(sockets)
        cut_off.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Hear of a signal; the second SIGINT waits for nothing more."""
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._drain)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that stop the server, and do not die of them afterwards."""
        with super().capture_signals():
            yield
            if not self.force_exit:
                self._captured_signals.clear()  # otherwise uvicorn raises them once more

    def _drain(self) -> None:
        if not self.server_state.is_draining:
            # First: who connects after the others were told to go would be cut off.
            for listener in self.servers:
                listener.close()
            self.server_state.is_draining = True
            self._on_drain()

    def _cut_off(self) -> None:
        if late := self.server_state.all():
            _log.warning("%d connections did not finish in time and are cut off", len(late))
        for connection in late:
            connection.cut_off()

    def _sweep(self) -> None:
        self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self.server_state.sweep()


def serve(server: Server, settings: Settings) -> int:
    """Run a server in the main thread and return the exit code."""
    _allow_files(2 * settings.max_connections + _OTHER_FILES)
    try:
        server.run()
    except KeyboardInterrupt:  # the second one: work was abandoned
        return 128 + signal.SIGINT
    return 0 if server.started else STARTUP_FAILURE


def _allow_files(wanted: int) -> None:
    """Let the process open so many files, or as many as it may."""
    allowed, at_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if at_most != resource.RLIM_INFINITY:
        wanted = min(wanted, at_most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, at_most))


class _Loop(uvloop.Loop):
    """uvloop, whose servers do not wait for a TLS handshake longer than for a head."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options |= {
                "ssl_handshake_timeout": self._settings.header_seconds,
                "ssl_shutdown_timeout": _TLS_GOODBYE_SECONDS,
            }
        return await super().create_server(*args, **options)


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Connection,
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds + _LAST_SECONDS,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise TlsError("SEGOPS_TLS_CERTIFICATE and SEGOPS_TLS_KEY are of use only together")
    try:
        config.load()
    except OSError as error:  # of which ssl's errors are kinds
        raise TlsError(
            f"the certificate {settings.tls_certificate} cannot be used with the key "
            f"{settings.tls_key}: {error}"
        ) from error
    return config
