"""Dispatch: operations go to their endpoints at once, everything else to the framework.

The framework's own way to an endpoint takes longer than a small request does.
"""

from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segops_service.problems import METHOD_NOT_ALLOWED, is_foreseen, problem_response, response_to


class Dispatch:
    """ASGI application that answers errors of its endpoints with problem documents.

    Parameters
    ----------
    app
        Where all other paths lead.
    endpoints
        Endpoints by path; all take POST alone.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self._app(scope, receive, send)
        elif scope["method"] != "POST":
            await _not_allowed(scope, receive, send)
        else:
            await _guarded(endpoint, scope, receive, send)


async def _guarded(endpoint: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    is_started = False

    async def noting_start(message: Message) -> None:
        nonlocal is_started
        is_started = True
        await send(message)

    try:
        await endpoint(scope, receive, noting_start)
    except ClientDisconnect:
        pass  # nobody is there to be answered
    except Exception as error:
        if is_started:
            raise
        response = await response_to(Request(scope), error)
        await response(scope, receive, send)
        if not is_foreseen(error):
            raise  # for the log
        # Its frames hold the body, and one of them the future that holds it: a cycle.
        error.__traceback__ = None


async def _not_allowed(scope: Scope, receive: Receive, send: Send) -> None:
    response = problem_response(
        METHOD_NOT_ALLOWED,
        f"{scope['path']} does not take {scope['method']}",
        headers={"allow": "POST"},
    )
    await response(scope, receive, send)
