"""Command line: ``segops-service serve``."""

import argparse
import os
from collections.abc import Sequence

import jax
from pydantic import ValidationError

from segops_service import logs, server
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
    try:
        return serve(settings)
    except server.TlsError as error:
        parser.error(str(error))


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, finish what was accepted, and return the exit code."""
    logs.configure(settings)
    prepare_jax(settings)
    engine = Engine(settings)
    app = create_app(settings, engine)
    return server.serve(server.Server(app, settings, engine.drain, app.metrics.refused), settings)


def prepare_jax(settings: Settings) -> None:
    """Tell JAX what it reads before it looks for devices; what the operator told it stays.

    Parameters
    ----------
    settings
        The platform to compute on, and the share of a GPU's memory to take at the start.
    """
    if settings.platform == "cpu":
        # Otherwise JAX would also set up a GPU that is there, and reserve its memory.
        jax.config.update("jax_platforms", "cpu")
    share = settings.preallocate
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true" if share else "false")
    if share and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:  # the older name of the same
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", str(share))


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
