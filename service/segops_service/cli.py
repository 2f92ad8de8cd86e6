"""Command line: ``segops-service serve``."""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import jax
import uvicorn
from pydantic import ValidationError

from segops_service.app import create_app
from segops_service.engine import Engine
from segops_service.metadata import SERVICE_VERSION
from segops_service.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    del options["command"]
    try:
        settings = Settings(**options)
    except ValidationError as error:
        parser.error(str(error))
    return serve(settings)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, finish what was accepted, and return the exit code."""
    logging.basicConfig(format="%(levelname)-9s %(name)s: %(message)s")
    logging.getLogger(__package__).setLevel(settings.log_level.upper())
    if settings.platform == "cpu":
        # Otherwise JAX would also set up a GPU that is there, and reserve its memory.
        jax.config.update("jax_platforms", "cpu")
    engine = Engine(settings.platform, settings.cache_size)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings, engine),
            host=settings.host,
            port=settings.port,
            lifespan="on",
            log_level=settings.log_level,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=settings.shutdown_seconds,
        )
    )
    # uvicorn raises the signal that stopped it once more when all is done: that is success.
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    server.run()
    return 0


def _exit(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="segops-service", description="Serve segment operations over HTTP."
    )
    parser.add_argument("--version", action="version", version=SERVICE_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "serve",
        help="serve until SIGTERM",
        description="Every setting is an environment variable SEGOPS_<NAME>; an option overrides "
        "its variable.",
        argument_default=argparse.SUPPRESS,
    )
    for name in ("host", "port"):
        field = Settings.model_fields[name]
        command.add_argument(f"--{name}", help=f"{field.description} Default: {field.default}.")
    return parser
