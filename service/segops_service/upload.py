"""Large bodies, received straight into the buffer that the application gets."""

import asyncio
from typing import TYPE_CHECKING

import numpy as np
from starlette.types import Message

if TYPE_CHECKING:
    from segops_service.protocol import Connection

SMALLEST = 64 * 1024
"""Bodies under this stay with uvicorn: they mostly come whole, together with their head."""

_SINK = memoryview(bytearray(256 * 1024))
"""Where bytes that nobody wants any more go; never read."""


class Upload(asyncio.BufferedProtocol):
    """Body of one request whose length was declared.

    While it arrives this object takes the connection's place at the transport, which then writes
    into the body's buffer itself: no parser, no copy, and one message to the application instead of
    one a chunk.

    Parameters
    ----------
    connection
        The connection, whose parser has just read the head.
    length
        Declared length of the body.
    """

    def __init__(self, connection: "Connection", length: int) -> None:
        self._connection = connection
        self._cycle = connection.cycle
        self._receive = connection.cycle.receive
        self._length = length
        self._received = 0
        self._body: memoryview | None = None
        self._has_no_memory = False

    async def receive(self) -> Message:
        """Give the application the body once it is whole; then wait for the client to go.

        Raises
        ------
        MemoryError
            If there is no room for it.
        """
        message: Message = {**await self._receive()}
        if message["type"] == "http.disconnect":
            return message
        if self._body is None:
            raise MemoryError(f"there is no memory for a body of {self._length} bytes")
        message["body"], self._body = self._body.toreadonly(), None
        return message

    def store(self, data: bytes) -> None:
        """Take what the parser was given together with the head."""
        begin = self._received
        self._received += len(data)
        if len(data) == self._length:
            self._body = memoryview(data)
        elif (buffer := self._buffer()) is not None:
            buffer[begin : self._received] = data

    def release(self) -> None:
        """Forget the body: the application has answered without it."""
        self._body = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Say where the transport is to write: never past the end of the body."""
        buffer = self._buffer()
        if buffer is None:
            return _SINK[: self._length - self._received]
        return buffer[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count what the transport has written."""
        self._received += nbytes
        self._connection.body_received(nbytes)
        if self._received == self._length:
            self._connection.upload_received()

    def eof_received(self) -> None:
        """Hear of the end of the stream."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear of the end of the connection."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hear that the client reads more slowly than the application writes."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Hear that the client has read what there was."""
        self._connection.resume_writing()

    def _buffer(self) -> memoryview | None:
        if self._cycle.response_complete or self._cycle.disconnected or self._has_no_memory:
            return None
        if self._body is None:
            try:
                self._body = np.empty(self._length, np.uint8).data
            except MemoryError:
                self._has_no_memory = True
                self._cycle.message_event.set()
        return self._body
