"""The application: endpoints, framework and middleware put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from segops_service import docs_page, openapi
from segops_service.admission import Admission
from segops_service.authorization import Authorization
from segops_service.dispatch import Dispatch
from segops_service.endpoints import OperationEndpoint
from segops_service.engine import Engine
from segops_service.limits import BodyLimit
from segops_service.metadata import SERVICE_VERSION
from segops_service.metrics import Metrics
from segops_service.operations import OPERATIONS
from segops_service.problems import add_problem_handlers
from segops_service.routes import service_router
from segops_service.settings import Settings
from segops_service.telemetry import Telemetry
from segops_service.tracing import instrument


class Application:
    """The service as one ASGI application.

    Its lifespan starts the engine, without waiting for it to be ready, and stops it at the end.

    Parameters
    ----------
    settings
        Limits of requests, and who may send them.
    engine
        What computes.

    Attributes
    ----------
    admission
        What is under way.
    metrics
        What is measured.
    framework
        What serves everything but the operations.
    """

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.admission = Admission(settings.queue_requests, settings.queue_bytes)
        self.metrics = Metrics(engine, self.admission)
        engine.observe(self.metrics, lambda: self.admission.arriving)
        self.framework = _framework(settings, engine, self.admission, self.metrics)
        endpoints = {
            f"/v1/{name}": OperationEndpoint(name, settings, engine, self.admission)
            for name in OPERATIONS
        }
        limited = BodyLimit(Dispatch(self.framework, endpoints), settings.max_body_bytes)
        authorized = Authorization(limited, settings)
        self._app = instrument(Telemetry(authorized, self.metrics), settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        await self._app(scope, receive, send)


def create_app(settings: Settings, engine: Engine) -> Application:
    """Build the ASGI application of some settings on an engine that nobody else starts."""
    return Application(settings, engine)


def _framework(
    settings: Settings, engine: Engine, admission: Admission, metrics: Metrics
) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.stop()

    app = FastAPI(
        title="segops",
        summary="Segment operations and their derivatives",
        version=SERVICE_VERSION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours is around it
    )
    app.include_router(service_router(settings, engine, admission, metrics))
    docs_page.add(app)
    openapi.add(app, settings)
    add_problem_handlers(app)
    return app
