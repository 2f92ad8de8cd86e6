"""A server that sends what it was told to."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


def answer(status: int, body: bytes, **headers: str) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status} Some", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(replies: Iterable[bytes]) -> AsyncIterator[tuple[str, int]]:
    """Answer each request with the next reply, and close the connection when there is none."""
    turns = iter(replies)
    tasks = []

    async def serve(reader, writer):
        tasks.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                reply = next(turns, None)
                if reply is None:
                    break
                writer.write(reply)
        except asyncio.IncompleteReadError:
            pass
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()
        await asyncio.gather(*tasks)
