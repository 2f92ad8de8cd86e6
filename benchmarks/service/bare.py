"""The yardstick: a FastAPI route that reads the body and returns a reply of a given size.

``python -m benchmarks.service.bare REPLY_BYTES LOG_LEVEL`` serves it on the port of the environment
with the loop and the parser that the service is served with. At the level ``info`` uvicorn logs a
line a request, as the service does.
"""

import os
import sys

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.service.connection import MSGPACK

PATH = "/bare"


def create_app(reply_bytes: int) -> FastAPI:
    """Build the application."""
    app = FastAPI()
    reply = bytes(reply_bytes)

    @app.post(PATH)
    async def bare(request: Request) -> Response:
        await request.body()
        return Response(reply, media_type=MSGPACK)

    return app


if __name__ == "__main__":
    uvicorn.run(
        create_app(int(sys.argv[1])),
        port=int(os.environ["SEGOPS_PORT"]),
        loop="uvloop",
        http="httptools",
        log_level=sys.argv[2],
        timeout_keep_alive=30,
    )
