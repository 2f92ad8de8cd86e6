"""The log's handler never waits for its reader, and never harms who logs."""

import logging
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from segops_service.log_handler import LineHandler


@contextmanager
def logging_to(descriptor: int, most_waiting: int = 10_000) -> Iterator[logging.Logger]:
    """A logger with the handler."""
    handler = LineHandler(descriptor, most_waiting)
    logger = logging.getLogger("segops_service.log_handler")  # the handler's own
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield logger
    finally:
        handler.close()
        logger.propagate = True
        logger.removeHandler(handler)


def read_until(descriptor: int, is_enough: Callable[[bytes], bool]) -> bytes:
    read, deadline = b"", time.monotonic() + 10
    while not is_enough(read):
        assert time.monotonic() < deadline, read[-1000:]
        if select.select([descriptor], [], [], 0.05)[0]:
            read += os.read(descriptor, 2**16)
    return read


def test_a_line_is_there_at_once() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as logger:
        logger.warning("%s", "first")
        assert os.read(reader, 100) == b"first\n"


def test_a_line_longer_than_a_pipe_takes_in_one_piece_arrives_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    long = "x" * (2**17)
    with logging_to(writer) as logger:
        for text in ("before", long, "after"):
            logger.warning(text)
        lines = read_until(reader, lambda read: read.endswith(b"after\n")).decode().split()
    assert lines == ["before", long, "after"]


def test_a_reader_that_stops_stops_nobody_and_gets_everything_later() -> None:
    reader, writer = os.pipe()
    count = 5000
    with logging_to(writer) as logger:
        began = time.monotonic()
        for number in range(count):
            logger.warning("%06d %s", number, "x" * 50)
        assert time.monotonic() - began < 5
        lines = read_until(reader, lambda read: read.count(b"\n") == count).decode().split("\n")
    assert [int(line[:6]) for line in lines[:-1]] == [*range(count)]


def test_what_waits_is_bounded_and_the_loss_is_told() -> None:
    reader, writer = os.pipe()
    with logging_to(writer, most_waiting=1000) as logger:
        for number in range(5000):
            logger.warning("%06d %s", number, "x" * 50)
        read = read_until(reader, lambda read: _arrived(read) + _told(read) == 5000)
    assert 0 < _told(read) < 5000


def _arrived(read: bytes) -> int:
    return read.count(b"x\n")


def _told(read: bytes) -> int:
    return sum(map(int, re.findall(rb"(\d+) lines of the log were lost", read)))


def test_a_reader_that_has_gone_harms_nobody() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as logger:
        os.close(reader)
        for _ in range(3):
            logger.warning("nobody reads this")
            logger.warning("x" * (2**17))


def test_closing_the_descriptor_does_not_send_lines_to_whoever_gets_its_number() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as logger:
        os.close(writer)
        other_reader, other_writer = os.pipe()
        logger.warning("mine")
        assert os.read(reader, 100) == b"mine\n"
        assert not select.select([other_reader], [], [], 0)[0]
    os.close(other_writer)


def test_a_record_that_cannot_be_written_down_harms_nobody() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as logger:
        logger.warning("%d", "no number")
        logger.warning("next \ud800")
        lines = read_until(reader, lambda read: read.count(b"\n") == 2).splitlines()
    assert lines[0].startswith(b"'%d' with ('no number',) could not be written")
    assert lines[1] == b"next \\ud800"


def test_the_end_waits_for_a_blocked_reader_no_longer_than_a_moment() -> None:
    _, writer = os.pipe()
    with logging_to(writer) as logger:
        for _ in range(5000):
            logger.warning("x" * 50)
        began = time.monotonic()
    assert time.monotonic() - began < 3


def test_a_record_that_cannot_be_made_harms_nobody() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as logger:
        (handler,) = logger.handlers
        assert isinstance(handler, LineHandler)
        handler.put(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        logger.warning("next")
        lines = read_until(reader, lambda read: read.count(b"\n") == 2).splitlines()
    assert lines[0].startswith(b"a record could not be made: ZeroDivisionError")
    assert lines[1] == b"next"
