"""The OpenAPI document: the framework's, and the operations, which the framework does not see."""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from segops_client.wire import MEDIA_TYPE, MEDIA_TYPES
from segops_service import paths, problems, schemas
from segops_service.body import JSON_TYPE
from segops_service.heads import TIMEOUT_HEADER
from segops_service.operations import OPERATIONS
from segops_service.problems import Problem
from segops_service.schemas import Schema
from segops_service.settings import Settings

Part = dict[str, Any]

_X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
_ONES = [[1.0, 1.0, 1.0]] * 3
_IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
_OPERAND_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "segmented_sum": {"x": _X},
    "segmented_mean": {"x": _X},
    "segmented_dot": {"x": _X, "y": _ONES},
    "segmented_rms_norm": {"x": _X},
    "segmented_mul": {"x": _X, "y": [2.0, 3.0]},
    "segmented_matvec": {"v": _X, "m": [_IDENTITY, _IDENTITY]},
}

_MSGPACK = schemas.reference("msgpack")
_CONTENT: Mapping[str, Part] = {
    **{path: {JSON_TYPE: schemas.reference("health")} for path in paths.HEALTH},
    "/v1/metadata": {JSON_TYPE: schemas.reference("metadata")},
    "/v1/status": {JSON_TYPE: schemas.reference("status")},
    paths.METRICS: {"text/plain": {"type": "string"}},
}
"""Answers of the service's own routes: schema by media type."""

_ANYWHERE = frozenset(
    {
        problems.MALFORMED_REQUEST,
        problems.REQUEST_TIMEOUT,
        problems.OVERLOADED,
        problems.HEAD_TOO_LARGE,
        problems.INTERNAL,
    }
)
_WRONG = frozenset(problems.PROBLEMS.values()) | _ANYWHERE
_UNNAMED = (400, 408, 429, 431)
"""Statuses that the server gives also where no request was read that it could name."""

_REQUEST_ID: Part = {
    "name": "X-Request-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": (
        "Name for the request, which the answer repeats: up to 128 letters, digits and `._-`; "
        "any other is replaced."
    ),
}
_REQUEST_TIMEOUT: Part = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "description": (
        "Seconds that the caller waits once its upload has ended; past them no computation is "
        "begun for it."
    ),
}
_RETRY_AFTER: Part = {
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Seconds after which another try has a chance.",
}
_CHALLENGE: Part = {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}}


def add(app: FastAPI, settings: Settings) -> None:
    """Serve `document`, which is made when it is first asked for."""

    def cached() -> Part:
        if app.openapi_schema is None:
            app.openapi_schema = document(app, settings)
        return app.openapi_schema

    app.openapi = cached  # type: ignore[method-assign]


def document(app: FastAPI, settings: Settings) -> Part:
    """Describe every route of an application.

    Parameters
    ----------
    app
        The application; its framework knows all routes but those of the operations.
    settings
        Whether tokens are needed, and where they are not.
    """
    whole = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    items = {
        **{f"/v1/{name}": {"post": _operation(name)} for name in OPERATIONS},
        **{path: {"get": item["get"] | _service(path)} for path, item in whole["paths"].items()},
    }
    components = {
        "schemas": schemas.schemas(),
        "responses": {f"problem_{status}": part for status, part in _problems(_WRONG).items()},
    }
    if settings.tokens:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        _protect(items, settings)
    return whole | {"paths": items, "components": components}


def example(name: str) -> dict[str, Any]:
    """JSON body that works as it stands, for operation ``name``."""
    operands = _OPERAND_EXAMPLES[name]
    first = OPERATIONS[name].operands[0]
    return {
        **operands,
        "idx": [0, 0, 1],
        "num_segments": 2,
        "want": ["value", "vjp", "jvp"],
        "tangents": {first: _ONES},
    }


def _operation(name: str) -> Part:
    operation = OPERATIONS[name]
    request = schemas.reference(schemas.request_name(name))
    answer = schemas.reference(schemas.answer_name(name))
    return {
        "tags": ["operations"],
        "summary": operation.summary,
        "operationId": name,
        "parameters": [_REQUEST_ID, _REQUEST_TIMEOUT],
        "requestBody": {
            "required": True,
            "content": {
                JSON_TYPE: {"schema": request, "example": example(name)},
                **{media_type: {"schema": _MSGPACK} for media_type in MEDIA_TYPES},
            },
        },
        "responses": {
            "200": _success({JSON_TYPE: answer, MEDIA_TYPE: _MSGPACK}),
            **{
                status: {"$ref": f"#/components/responses/problem_{status}"}
                for status in _problems(_WRONG)
            },
        },
    }


def _protect(items: Mapping[str, Part], settings: Settings) -> None:
    """Note where a token is needed."""
    for path, item in items.items():
        for operation in item.values():
            if not _is_public(path, settings):
                operation["security"] = [{"bearer": []}]
                operation["responses"] |= _problems([problems.UNAUTHORIZED])


def _is_public(path: str, settings: Settings) -> bool:
    if path in paths.HEALTH:
        return "health" in settings.public_routes
    return path == paths.METRICS and "metrics" in settings.public_routes


def _service(path: str) -> Part:
    kinds = _ANYWHERE | {problems.NOT_READY} if path.endswith("/ready") else _ANYWHERE
    return {
        "parameters": [_REQUEST_ID],
        "responses": {"200": _success(_CONTENT[path]), **_problems(kinds)},
    }


def _success(content: Mapping[str, Schema]) -> Part:
    return {
        "description": "What was asked for.",
        "headers": _headers(200),
        "content": {media_type: {"schema": schema} for media_type, schema in content.items()},
    }


def _problems(kinds: Iterable[Problem]) -> dict[str, Part]:
    """Responses for problems, by status."""
    by_status: dict[int, list[Problem]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.slug)):
        by_status.setdefault(kind.status, []).append(kind)
    return {str(status): _problem(status, same) for status, same in by_status.items()}


def _problem(status: int, kinds: list[Problem]) -> Part:
    return {
        "description": " ".join(f"{kind.title}." for kind in kinds),
        "headers": _headers(status),
        "content": {problems.MEDIA_TYPE: {"schema": schemas.problem(kinds)}},
    }


def _headers(status: int) -> dict[str, Part]:
    own = {429: {"Retry-After": _RETRY_AFTER}, 401: {"WWW-Authenticate": _CHALLENGE}}
    request_id = {
        "required": status not in _UNNAMED,
        "schema": {"type": "string"},
        "description": "Name of the request in the server's log.",
    }
    return {"X-Request-ID": request_id, **own.get(status, {})}
