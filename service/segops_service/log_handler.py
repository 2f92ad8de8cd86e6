"""A handler of the log that writes to a descriptor, and never waits for whoever reads it."""

import logging
import os
import select
import threading
import time
from collections import deque

_MOST_WAITING = 8 * 1024 * 1024
_FLUSH_SECONDS = 1.0
_PAUSE = 0.02


class LineHandler(logging.Handler):
    """Writes records from a thread, those of a moment at once; a warning does not wait.

    What waits is bounded in bytes; lines over that are lost, and the log says how many.

    Parameters
    ----------
    descriptor
        Where to write; a duplicate of it is kept, so that closing it harms nobody.
    most_waiting
        Bytes that may wait for a reader.
    """

    def __init__(self, descriptor: int, most_waiting: int = _MOST_WAITING) -> None:
        super().__init__()
        self._descriptor = os.dup(descriptor)
        self._most_waiting = most_waiting
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._has_lines = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; who logs never hears of a failure to write it."""
        try:
            self._put(f"{self.format(record)}\n".encode(errors="backslashreplace"))
            if record.levelno >= logging.WARNING:
                self._write_now()
        except Exception:
            self._lost += 1

    def flush(self) -> None:
        """Wait a moment for what is being written, and write what waits."""
        if self._writing.acquire(timeout=_FLUSH_SECONDS):
            self._writing.release()
            self._write_now()

    def close(self) -> None:
        """Write what waits, and no more."""
        self.flush()
        super().close()

    def _put(self, line: bytes) -> None:
        with self._guard:
            if self._waiting_bytes + len(line) > self._most_waiting:
                self._lost += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="segops-log", daemon=True)
                self._thread.start()
        if not self._has_lines.is_set():
            self._has_lines.set()

    def _live(self) -> None:
        while self._has_lines.wait():
            time.sleep(_PAUSE)
            with self._writing:
                self._has_lines.clear()
                self._write(self._take())
                self._tell_losses()

    def _write_now(self) -> None:
        """Write what waits if nobody is at it and that cannot block."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            # A pipe that can be written to takes at least this much without blocking.
            while _takes_more(self._descriptor) and (lines := self._take(select.PIPE_BUF)):
                self._write(lines)
        finally:
            self._writing.release()

    def _take(self, most: int | None = None) -> bytes:
        """Take lines that wait: all, or as many as fit into ``most`` bytes."""
        taken: list[bytes] = []
        with self._guard:
            while self._waiting and (most is None or len(self._waiting[0]) <= most):
                line = self._waiting.popleft()
                self._waiting_bytes -= len(line)
                most = None if most is None else most - len(line)
                taken.append(line)
        return b"".join(taken)

    def _tell_losses(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            text = "%d lines of the log were lost, since nobody read them"
            told = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lost,), None)
            self._write(f"{self.format(told)}\n".encode())

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._lost += 1


def _takes_more(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
