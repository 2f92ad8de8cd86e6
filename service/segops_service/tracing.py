"""OpenTelemetry traces: a span for each request, and below it one for each of its stages."""

from time import time_ns

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from segops_service import paths
from segops_service.exchange import Exchange, exchange_of
from segops_service.metadata import SERVICE_VERSION
from segops_service.settings import Settings

_NAME = "segops-service"


def instrument(app: ASGIApp, settings: Settings) -> ASGIApp:
    """Trace an application if the settings say so.

    Where spans are sent, and which, is told by OpenTelemetry's own variables, such as
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` and ``OTEL_TRACES_SAMPLER``.

    Parameters
    ----------
    app
        The application, which keeps a record of each request.
    settings
        Whether to trace.

    Raises
    ------
    RuntimeError
        If that needs packages that are not installed.
    """
    return Tracing(app, _tracer()) if settings.tracing else app


class Tracing:
    """Middleware that makes spans of what the record of a request says once it has ended.

    The probes of health and metrics are not traced.

    Parameters
    ----------
    app
        The application inside, which keeps those records.
    tracer
        Source of the spans.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self.app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] in paths.PROBES:
            await self.app(scope, receive, send)
            return
        began = time_ns()
        span = self._start(scope, began)
        try:
            with trace.use_span(span):
                await self.app(scope, receive, send)
        finally:
            if span.is_recording():
                _describe(span, scope, exchange_of(scope))
                self._add_stages(span, exchange_of(scope), began)
            span.end()

    def _start(self, scope: Scope, began: int) -> Span:
        return self._tracer.start_span(
            scope["method"],
            propagate.extract(Headers(scope=scope)),
            SpanKind.SERVER,
            {
                "http.request.method": scope["method"],
                "url.scheme": scope.get("scheme", "http"),
                "url.path": scope["path"],
            },
            start_time=began,
        )

    def _add_stages(self, span: Span, exchange: Exchange, began: int) -> None:
        # A record has no more than their lengths; one follows the other with little between them.
        context = trace.set_span_in_context(span)
        for stage, seconds in exchange.stages.items():
            ended = began + int(seconds * 1e9)
            self._tracer.start_span(stage, context, start_time=began).end(ended)
            began = ended


def _describe(span: Span, scope: Scope, exchange: Exchange) -> None:
    if exchange.op:
        span.update_name(f"{scope['method']} /v1/{exchange.op}")
        span.set_attribute("http.route", f"/v1/{exchange.op}")
    span.set_attributes(
        {
            "http.response.status_code": exchange.status,
            "segops.request_id": exchange.request_id,
            "segops.op": exchange.op,
            "segops.want": exchange.want,
            "segops.rows": exchange.rows,
            "segops.segments": exchange.segments,
            "segops.batch": exchange.batch,
        }
    )
    if exchange.problem:
        span.set_attribute("error.type", exchange.problem)
    if exchange.status >= 500:
        span.set_status(StatusCode.ERROR)


def _tracer() -> Tracer:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RuntimeError(
            "SEGOPS_TRACING needs the extra `otel`: pip install 'segops-service[otel]'"
        ) from error
    own = Resource.create({"service.name": _NAME, "service.version": SERVICE_VERSION})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(_NAME, SERVICE_VERSION)
