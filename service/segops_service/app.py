"""The application: settings, routers, problem table and middleware put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from segops_service.engine import Engine
from segops_service.limits import BodyLimit
from segops_service.metadata import SERVICE_VERSION
from segops_service.problems import add_problem_handlers
from segops_service.routes import operation_router, service_router
from segops_service.settings import Settings


def create_app(settings: Settings, engine: Engine) -> FastAPI:
    """Build the ASGI application.

    Its lifespan starts the engine, without waiting for it to be ready, and stops it at the end.

    Parameters
    ----------
    settings
        Limits of requests.
    engine
        What computes.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    app = FastAPI(
        title="segops",
        summary="Segment operations and their derivatives",
        version=SERVICE_VERSION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.include_router(operation_router(settings, engine))
    app.include_router(service_router(settings, engine))
    add_problem_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    return app
