"""Routes: the operations, health and metadata."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from segops_service import body, openapi
from segops_service.calls import Call
from segops_service.engine import Engine
from segops_service.metadata import metadata
from segops_service.operations import OPERATIONS, Operation
from segops_service.settings import Settings
from segops_service.validation import validate

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES = 64 * 1024
"""Up to here the hop to another thread costs more than the work that it takes off the loop."""


def operation_router(settings: Settings, engine: Engine) -> APIRouter:
    """``POST /v1/{op}`` for each operation."""
    router = APIRouter(prefix="/v1", tags=["operations"])
    for name, operation in OPERATIONS.items():
        router.add_api_route(
            f"/{name}",
            _operation_endpoint(name, operation, settings, engine),
            methods=["POST"],
            name=name,
            summary=operation.summary,
            response_class=Response,
            responses=openapi.responses(operation),
            openapi_extra={"requestBody": openapi.request_body(name, operation)},
        )
    return router


def service_router(settings: Settings, engine: Engine) -> APIRouter:
    """Health, also under the addresses that Triton and KServe tools ask, and metadata."""
    router = APIRouter(tags=["service"])

    async def live() -> dict[str, str]:
        """Whether the process answers; true also while the device is being set up."""
        return {"status": "live"}

    async def ready() -> dict[str, str]:
        """Whether requests are computed now."""
        engine.require_ready()
        return {"status": "ready"}

    async def describe() -> dict[str, Any]:
        """Versions, platform, device, limits and operations."""
        return metadata(settings, engine)

    for version in ("v1", "v2"):
        router.add_api_route(f"/{version}/health/live", live, name=f"live-{version}")
        router.add_api_route(
            f"/{version}/health/ready", ready, name=f"ready-{version}", responses=openapi.NOT_READY
        )
    router.add_api_route("/v1/metadata", describe, name="metadata")
    return router


def _operation_endpoint(
    name: str, operation: Operation, settings: Settings, engine: Engine
) -> Callable[..., Any]:
    def parse(content: bytearray, sent: body.Encoding) -> Call:
        return validate(name, body.decode(content, sent, operation, settings), settings)

    async def endpoint(request: Request) -> Response:
        engine.require_ready()
        sent = body.sent_encoding(request.headers)
        wanted = body.answer_encoding(request.headers, sent)
        content = await body.read(request)
        call = await _beside_loop(len(content), parse, content, sent)
        answer = await engine.compute(call)
        encoded = await _beside_loop(body.size(answer), body.encode, answer, wanted, settings)
        return Response(encoded, media_type=wanted.value)

    return endpoint


async def _beside_loop(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function of ``size`` bytes in a thread, or in place where it is over at once."""
    if size <= _INLINE_BYTES:
        return function(*args, **kwargs)
    return await run_in_threadpool(function, *args, **kwargs)
