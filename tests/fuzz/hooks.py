"""What Schemathesis cannot know by itself: bodies in msgpack, and time limits that can be kept."""

from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import strategies as st

from segops_client import wire
from segops_service.heads import TIMEOUT_HEADER
from tests.fuzz.seeds import requests

_GOOD = st.sampled_from([wire.packb(fields) for _, fields in requests()])

for media_type in wire.MEDIA_TYPES:
    schemathesis.openapi.media_type(media_type, _GOOD)


@schemathesis.hook
def before_call(_: schemathesis.HookContext, case: schemathesis.Case, __: dict[str, Any]) -> None:
    """Give a good request time; most have the shortest limit there is, and would be a 503."""
    with suppress(KeyError, TypeError, ValueError):
        if 0 < float(case.headers[TIMEOUT_HEADER]) < 60:
            case.headers[TIMEOUT_HEADER] = "60"
