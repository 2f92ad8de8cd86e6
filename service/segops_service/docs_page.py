"""The documentation page: Swagger UI from files of this host alone, so it needs no internet."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from segops_service.paths import DOCS

# Addresses are relative, so that the page works below any prefix that a proxy adds.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>segops</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/files/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/files/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

# The validator's badge would tell another host of this document.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
"""

# Swagger UI has its icons in data URLs; nothing else is let in.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def add(app: FastAPI) -> None:
    """Serve the page, and its files below its address; none of it is in the OpenAPI document."""
    app.add_route(DOCS, _page, include_in_schema=False)
    app.add_route(f"{DOCS}/start.js", _start, include_in_schema=False)
    app.mount(f"{DOCS}/files", StaticFiles(packages=[("fastapi_offline", "static")]))


async def _page(_: Request) -> Response:
    return HTMLResponse(_PAGE, headers=_HEADERS)


async def _start(_: Request) -> Response:
    return Response(_START, media_type="text/javascript", headers=_HEADERS)
