"""A handler of the log that writes to a descriptor, and never waits for whoever reads it."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

_MOST_WAITING = 16_384
_FLUSH_SECONDS = 1.0
_PAUSE = 0.02


class LineHandler(logging.Handler):
    """Formats and writes records in a thread, those of a moment at once; a warning does not wait.

    What waits is bounded; records over that are lost, and the log says how many.

    Parameters
    ----------
    descriptor
        Where to write; a duplicate of it is kept, so that closing it harms nobody.
    most_waiting
        Records that may wait for a reader.
    """

    def __init__(self, descriptor: int, most_waiting: int = _MOST_WAITING) -> None:
        super().__init__()
        self._descriptor = os.dup(descriptor)
        self._most_waiting = most_waiting
        self._waiting: deque[logging.LogRecord | Callable[[], logging.LogRecord]] = deque()
        self._lost = 0
        self._is_writing = False
        self._has_records = threading.Event()
        self._is_urgent = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record, without the lock of other handlers: a deque needs none."""
        is_wanted = bool(self.filter(record))
        if is_wanted:
            self.emit(record)
        return is_wanted

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; who logs never hears of a failure to write it."""
        self.put(record)
        if record.levelno >= logging.WARNING:
            self._is_urgent.set()

    def put(self, record: logging.LogRecord | Callable[[], logging.LogRecord]) -> None:
        """Take a record, or what makes one when it is time to write it."""
        if len(self._waiting) >= self._most_waiting:
            self._lost += 1
            return
        self._waiting.append(record)
        if not self._has_records.is_set():
            self._wake()

    def flush(self) -> None:
        """Wait a moment for what is being written."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        self._is_urgent.set()
        while (self._waiting or self._is_writing) and time.monotonic() < deadline:
            time.sleep(0.001)

    def close(self) -> None:
        """Write what waits, and no more."""
        self.flush()
        super().close()

    def _wake(self) -> None:
        with self._starting:
            self._has_records.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="segops-log", daemon=True)
                self._thread.start()

    def _live(self) -> None:
        while self._has_records.wait():
            self._is_urgent.wait(_PAUSE)
            self._is_writing = True
            self._has_records.clear()
            self._is_urgent.clear()
            self._write(b"".join(self._lines()))
            self._tell_losses()
            self._is_writing = False

    def _lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while self._waiting:
            waiting = self._waiting.popleft()
            try:
                lines.append(self._line(waiting() if callable(waiting) else waiting))
            except Exception as error:
                lines.append(self._line(_unwritten(waiting, error)))
        return lines

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _tell_losses(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            told = _own("%d lines of the log were lost, since nobody read them", lost)
            self._write(self._line(told))

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._lost += 1


def _unwritten(
    waiting: logging.LogRecord | Callable[[], logging.LogRecord], error: Exception
) -> logging.LogRecord:
    if callable(waiting):
        return _own("a record could not be made: %r", error)
    return _own("%r with %r could not be written: %r", waiting.msg, waiting.args, error)


def _own(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, args, None)
