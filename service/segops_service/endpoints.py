"""Endpoints of the operations, in plain ASGI: from a request's head to the end of its answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from starlette.types import Receive, Scope, Send

from segops_service import body, heads
from segops_service.admission import Admission, Slot
from segops_service.calls import Answer, Call
from segops_service.engine import Engine
from segops_service.exchange import Exchange, exchange_of
from segops_service.operations import OPERATIONS
from segops_service.settings import Settings
from segops_service.validation import validate
from segops_service.waiting import HangUp, within

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_INLINE_BYTES = 64 * 1024
"""Up to here the hop to another thread costs more than the work that it takes off the loop."""


class OperationEndpoint:
    """``POST /v1/{op}`` of one operation.

    Parameters
    ----------
    name
        The operation.
    settings
        Limits of requests.
    engine
        What computes.
    admission
        What may be under way.
    """

    def __init__(self, name: str, settings: Settings, engine: Engine, admission: Admission) -> None:
        self._name = name
        self._operation = OPERATIONS[name]
        self._settings = settings
        self._engine = engine
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        self._engine.require_able()
        head = heads.read(scope)
        exchange = exchange_of(scope)
        exchange.op = self._name
        with self._admission.enter(head.length) as slot:
            exchange.mark()
            content = await body.read(receive, slot)
            exchange.lap("upload")
            # The upload has limits of its own: from here on it is this server that takes its time.
            answer = await within(
                head.seconds, self._answer(content, head.sent, receive, slot, exchange)
            )
            exchange.mark()
            parts = await self._encode(answer, head.wanted)
            exchange.lap("encode")
            await _send(parts, head.wanted, send)

    async def _answer(
        self,
        content: body.Buffer,
        sent: body.Encoding,
        receive: Receive,
        slot: Slot,
        exchange: Exchange,
    ) -> Answer:
        if len(content) <= _INLINE_BYTES:
            call = self._parse(content, sent)
        else:
            call = await _in_thread(self._parse, content, sent)
        exchange.lap("decode")
        exchange.want, exchange.rows, exchange.segments = call.want, call.rows, call.num_segments
        slot.charge(len(content) + call.answer_bytes)
        slot.arrived()
        future = self._engine.submit(call, exchange)
        with HangUp(receive, future):
            return await future

    def _parse(self, content: body.Buffer, sent: body.Encoding) -> Call:
        fields = body.decode(content, sent, self._operation, self._settings)
        return validate(self._name, fields, self._settings)

    async def _encode(self, answer: Answer, wanted: body.Encoding) -> list[body.Part]:
        # Large arrays are not touched in msgpack, and small ones are written at once in JSON too.
        if wanted is body.Encoding.MSGPACK or body.size(answer) <= _INLINE_BYTES:
            return body.encode(answer, wanted, self._settings)
        return await _in_thread(body.encode, answer, wanted, self._settings)


def _in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> "asyncio.Future[T]":
    """Have something done in one of a few threads, also those whom nobody waits for any more."""
    return asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def _send(parts: Sequence[body.Part], encoding: body.Encoding, send: Send) -> None:
    """Send an answer part by part, so that large arrays are not copied into one.

    The end of a large one goes alone, since sending it waits until the client has read the rest: so
    long it takes memory, and keeps its place.
    """
    length = sum(map(len, parts))
    if length > _INLINE_BYTES:
        parts = [*parts, b""]
    headers = [
        (b"content-type", encoding.value.encode()),
        (b"content-length", str(length).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    last = len(parts) - 1
    for position, part in enumerate(parts):
        more = position < last
        await send({"type": "http.response.body", "body": part, "more_body": more})
