"""The log: one line a request and all other records, as JSON or for people, on standard error."""

import logging
import os
import re
import sys
from datetime import UTC, datetime
from functools import partial
from time import time

import msgspec
from starlette.types import Scope

from segops_service import paths
from segops_service.exchange import Exchange
from segops_service.log_handler import LineHandler
from segops_service.settings import LogFormat, Settings

_STANDARD_ERROR = 2
_LONGEST_PATH = 200
_LONGEST_TRACEBACK = 16 * 1024
_PLAIN = re.compile("[!-~]*")

logger = logging.getLogger("segops_service.requests")

_lines: LineHandler | None = None
"""Where lines of requests go past the machinery of logging, once it is configured."""


def configure(settings: Settings) -> None:
    """Send every record of the process to standard error, in the form of the settings.

    Records of this service and of uvicorn count from the level of the settings on, those of other
    libraries from ``warning`` on at the lowest.
    """
    level: int = getattr(logging, settings.log_level.upper())
    root = logging.getLogger()
    global _lines
    root.handlers[:] = [_lines := _handler(settings.log_format)]
    root.setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    # What no line says need not be looked up for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for name in ("segops_service", "uvicorn"):
        logging.getLogger(name).setLevel(level)
    # What uvicorn's own lines of the requests would say is in ours.
    logging.getLogger("uvicorn.access").propagate = False


def _handler(form: LogFormat) -> LineHandler:
    if sys.stderr is None:
        # Started without one: the next file or socket opened would be what everyone writes to.
        while os.open(os.devnull, os.O_RDWR) < _STANDARD_ERROR:
            pass
    handler = LineHandler(_STANDARD_ERROR)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    return handler


def request_ended(
    scope: Scope, exchange: Exchange, seconds: float, error: Exception | None = None
) -> None:
    """Log the line of a request; what machines ask all the time is for debugging only.

    Parameters
    ----------
    scope
        Source of its method and path.
    exchange
        Everything else about it.
    seconds
        How long it took.
    error
        What nobody foresaw, if that ended it.
    """
    level = logging.DEBUG if scope["path"] in paths.PROBES else logging.INFO
    if error is not None:
        level = logging.ERROR
    if logger.isEnabledFor(level):
        # Not the scope: what waits to be written must not keep the whole head of a request.
        about = {"method": scope["method"], "path": scope["path"][:_LONGEST_PATH]}
        record = partial(_record, level, about, exchange, seconds, error, time())
        if _lines is not None and error is None:
            _lines.put(record)  # and none of this is done while the next request waits
        else:
            logger.handle(record())


def _record(
    level: int,
    scope: Scope,
    exchange: Exchange,
    seconds: float,
    error: Exception | None,
    created: float,
) -> logging.LogRecord:
    line = _request_line(scope, exchange, seconds)
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, __file__, 0, line, (), raised)
    record.created = created
    return record


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A record as JSON has it."""

    ts: datetime | None = None
    level: str = ""
    logger: str = ""
    message: str = ""
    exception: str = ""


class RequestLine(Line, kw_only=True, omit_defaults=True):
    """A request as JSON has it; the stages are in milliseconds."""

    request_id: str
    method: str
    path: str
    status: int
    op: str = ""
    want: tuple[str, ...] = ()
    rows: int = 0
    segments: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0
    stages: dict[str, float] = {}
    batch: int = 0
    problem: str = ""

    def __str__(self) -> str:
        path = self.path if _PLAIN.fullmatch(self.path) else ascii(self.path)
        about = {
            "problem": self.problem,
            "want": "+".join(self.want),
            "rows": self.rows,
            "segments": self.segments,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "batch": self.batch,
            **{f"{stage}_ms": spent for stage, spent in self.stages.items()},
            "request_id": self.request_id,
        }
        head = f"{self.method} {path} {self.status} {self.seconds * 1e3:.3f} ms"
        return " ".join([head, *(f"{name}={value}" for name, value in about.items() if value)])


def _request_line(scope: Scope, exchange: Exchange, seconds: float) -> RequestLine:
    return RequestLine(
        message="request",
        request_id=exchange.request_id,
        method=_bounded(scope["method"]),
        path=_bounded(scope["path"]),
        status=exchange.status,
        op=exchange.op,
        want=exchange.want,
        rows=exchange.rows,
        segments=exchange.segments,
        bytes_in=exchange.bytes_in,
        bytes_out=exchange.bytes_out,
        seconds=round(seconds * 1e6) / 1e6,
        stages={stage: round(spent * 1e6) / 1e3 for stage, spent in exchange.stages.items()},
        batch=exchange.batch,
        problem=exchange.problem,
    )


def _bounded(text: str) -> str:
    """Text that a client chose, cut and with nothing in it that cannot be encoded."""
    text = text[:_LONGEST_PATH]
    return text if text.isascii() else text.encode(errors="replace").decode()


class JsonFormatter(logging.Formatter):
    """Gives a record as one JSON object; strings in it are escaped, so that it is one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = record.msg
        if not isinstance(line, Line):
            text = record.getMessage().encode(errors="backslashreplace").decode()
            line = Line(message=text)
        line.ts = datetime.fromtimestamp(record.created, UTC)
        line.level = record.levelname.lower()
        line.logger = record.name
        line.exception = _traceback(self, record)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """Gives a record for people; what follows its first line is indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        ts = datetime.fromtimestamp(record.created, UTC).isoformat(" ", "milliseconds")
        text = f"{record.getMessage()}\n{_traceback(self, record)}"
        return f"{ts} {record.levelname:8} {record.name}: " + "\n    ".join(text.splitlines())


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Traceback of a record's exception, the end of it where it is long."""
    if not record.exc_info:
        return ""
    text = formatter.formatException(record.exc_info)[-_LONGEST_TRACEBACK:]
    return text.encode(errors="backslashreplace").decode()
