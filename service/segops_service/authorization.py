"""Bearer tokens: who may ask for anything but the public routes."""

import hashlib
import hmac
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from segops_service import paths
from segops_service.problems import UNAUTHORIZED, problem_response
from segops_service.settings import PublicRoute, Settings

_SCHEME = b"bearer "
_CHALLENGE = 'Bearer realm="segops"'

# The router compares the same path, whole, so what only resembles one of these leads nowhere.
_BELONGS: Mapping[PublicRoute, Callable[[str], bool]] = {
    "health": lambda path: path in paths.HEALTH,
    "metrics": lambda path: path == paths.METRICS,
    "docs": lambda path: path in (paths.DOCS, paths.OPENAPI) or path.startswith(f"{paths.DOCS}/"),
}


class Authorization:
    """Middleware that refuses requests without a token, before their body is read.

    Parameters
    ----------
    app
        The application inside.
    settings
        The tokens, where none lets everyone in, and the routes that need no token.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._tokens = [_digest(token.get_secret_value().encode()) for token in settings.tokens]
        self._public = [_BELONGS[name] for name in settings.public_routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if not self._tokens or scope["type"] != "http" or self._is_public(scope["path"]):
            await self.app(scope, receive, send)
            return
        token = _token(scope)
        if token and self._is_known(token):
            await self.app(scope, receive, send)
            return
        response = problem_response(
            UNAUTHORIZED,
            "the token is not one that is let in" if token else "send one bearer token",
            headers={"www-authenticate": _challenge(token)},
        )
        await response(scope, receive, send)

    def _is_public(self, path: str) -> bool:
        return any(belongs(path) for belongs in self._public)

    def _is_known(self, token: bytes) -> bool:
        # Every token is compared, and in full, so that the time tells nothing about any of them.
        digest = _digest(token)
        return sum(hmac.compare_digest(digest, known) for known in self._tokens) > 0


def _token(scope: Scope) -> bytes:
    """Token of a request; empty unless it has exactly one ``Authorization``, of this scheme."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1 or not values[0].lower().startswith(_SCHEME):
        return b""
    token: bytes = values[0][len(_SCHEME) :].strip(b" ")
    return token


def _challenge(token: bytes) -> str:
    return f'{_CHALLENGE}, error="invalid_token"' if token else _CHALLENGE


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
