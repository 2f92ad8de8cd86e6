"""Routes beside the operations: health, metadata, status and metrics."""

from typing import Any

from fastapi import APIRouter, Response

from segops_service.admission import Admission
from segops_service.engine import Engine
from segops_service.metadata import metadata
from segops_service.metrics import CONTENT_TYPE, Metrics
from segops_service.settings import Settings
from segops_service.status import status


def service_router(
    settings: Settings, engine: Engine, admission: Admission, metrics: Metrics
) -> APIRouter:
    """Health, also under the addresses that Triton and KServe tools ask, and what is measured."""
    router = APIRouter(tags=["service"])

    async def live() -> dict[str, str]:
        """Whether the process answers; true also while the device is being set up."""
        return {"status": "live"}

    async def ready() -> dict[str, str]:
        """Whether requests are computed now."""
        engine.require_ready()
        return {"status": "ready"}

    async def describe() -> dict[str, Any]:
        """Versions, platform, devices, limits and operations."""
        return metadata(settings, engine)

    async def report() -> dict[str, Any]:
        """Queue, cache, and the work of each device."""
        return status(settings, engine, admission)

    async def scrape() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    for version in ("v1", "v2"):
        router.add_api_route(f"/{version}/health/live", live, name=f"live-{version}")
        router.add_api_route(f"/{version}/health/ready", ready, name=f"ready-{version}")
    router.add_api_route("/v1/metadata", describe, name="metadata")
    router.add_api_route("/v1/status", report, name="status")
    router.add_api_route("/v1/metrics", scrape, name="metrics", response_class=Response)
    return router
