"""Bearer tokens: what is open, what is closed, and that no spelling of a path opens it."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from starlette.responses import PlainTextResponse

from segops_client import wire
from segops_service import Settings
from segops_service.authorization import Authorization
from tests.service.asgi import Header, Reply, ask
from tests.service.helpers import MSGPACK, case, problem, serving

SUM = "/v1/segmented_sum"
TOKENS = "first-token, second.token~3"
HEALTH = ["/v1/health/live", "/v1/health/ready", "/v2/health/live", "/v2/health/ready"]
CLOSED = ["/v1/metadata", "/v1/status", "/v1/metrics", "/docs", "/docs/start.js", "/openapi.json"]


def asked(settings: Settings, path: str, *values: bytes) -> Reply:
    headers: list[Header] = [(b"authorization", value) for value in values]
    return ask(Authorization(PlainTextResponse("inside"), settings), path, headers=headers)


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    """Client of a server with two tokens, of which it sends none by itself."""
    with serving(Settings(tokens=TOKENS)) as client:
        yield client


@pytest.mark.parametrize("path", [SUM, *HEALTH, *CLOSED])
def test_without_tokens_everything_is_open(path: str) -> None:
    assert asked(Settings(), path).body == b"inside"


@pytest.mark.parametrize("token", [b"first-token", b"second.token~3"])
@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_each_token_opens_a_closed_route(scheme: bytes, token: bytes) -> None:
    assert asked(Settings(tokens=TOKENS), SUM, scheme + token).body == b"inside"


def test_a_token_that_is_not_ascii_works() -> None:
    settings = Settings(tokens="wörd")
    assert asked(settings, SUM, "Bearer wörd".encode()).body == b"inside"
    assert asked(settings, SUM, "Bearer wörd".encode("latin-1")).status == 401


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"Basic Zmlyc3QtdG9rZW46",),
        (b"Token first-token",),
        (b"first-token",),
        (b"Bearer first-token", b"Bearer first-token"),
        (b"Bearer first-token", b"Basic eDp5"),
    ],
)
def test_what_is_no_single_bearer_token_is_challenged(values: tuple[bytes, ...]) -> None:
    reply = asked(Settings(tokens=TOKENS), SUM, *values)
    assert reply.status == 401
    assert reply.header(b"www-authenticate") == 'Bearer realm="segops"'
    assert json.loads(reply.body)["type"] == "urn:segops:problem:unauthorized"


@pytest.mark.parametrize(
    "token",
    [
        b"first-toke",
        b"first-tokens",
        b"First-token",
        b"first-token, second.token~3",
        b"first-token second.token~3",
        b"\xff\xfe\x80",
        b"x" * 60_000,
    ],
)
def test_a_wrong_token_is_called_invalid(token: bytes) -> None:
    reply = asked(Settings(tokens=TOKENS), SUM, b"Bearer " + token)
    assert reply.status == 401
    assert reply.header(b"www-authenticate") == 'Bearer realm="segops", error="invalid_token"'
    assert token not in reply.body


def test_an_empty_token_in_the_settings_opens_nothing() -> None:
    settings = Settings(tokens=("", "real"))
    assert asked(settings, SUM, b"Bearer ").status == 401
    assert asked(settings, SUM, b"Bearer real").status == 200


@pytest.mark.parametrize(
    ("public", "is_open"),
    [
        ("health", [*HEALTH]),
        ("metrics", ["/v1/metrics"]),
        ("docs", ["/docs", "/docs/start.js", "/openapi.json"]),
        ("", []),
    ],
)
def test_public_routes_and_no_others_are_open(public: str, is_open: list[str]) -> None:
    settings = Settings(tokens=TOKENS, public_routes=public)
    paths = [SUM, *HEALTH, *CLOSED]
    assert [path for path in paths if asked(settings, path).status == 200] == [
        path for path in paths if path in is_open
    ]


def test_a_refused_body_is_not_read() -> None:
    assert asked(Settings(tokens=TOKENS), SUM).received == 0


def test_a_refusal_comes_before_the_upload(guarded: httpx.Client) -> None:
    with socket.create_connection((guarded.base_url.host, guarded.base_url.port), 30) as sender:
        sender.sendall(
            b"POST /v1/segmented_sum HTTP/1.1\r\nHost: here\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert b" 401 " in sender.recv(4096)


@pytest.mark.parametrize(
    "target",
    [
        "//v1/metadata",
        "/v1//metadata",
        "/v1/metadata/",
        "/v1/health/../metadata",
        "/v1/health/live/../../metadata",
        "/v1/health/%2e%2e/metadata",
        "/v1/health%2f..%2fmetadata",
        "/v1/health/live;/../metadata",
        "/docs/../v1/metadata",
        "/docs/%2e%2e/v1/metadata",
        "/docs/files/../../v1/metadata",
        "/docs/files/%2e%2e/%2e%2e/v1/metadata",
        "/v1/%6detadata",
        "/v1/metadata%00",
        "/v1/metadata?x=/v1/health/live",
        "/v1/metadata#/v1/health/live",
        "http://here/v1/metadata",
    ],
)
def test_no_spelling_of_a_path_opens_a_closed_route(guarded: httpx.Client, target: str) -> None:
    with socket.create_connection((guarded.base_url.host, guarded.base_url.port), 30) as sender:
        head = f"GET {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        sender.sendall(head.encode())
        answer = b"".join(iter(lambda: sender.recv(4096), b""))
    assert answer.split()[1] in (b"400", b"401", b"404")
    assert b"versions" not in answer


def test_a_server_with_tokens_serves_those_who_have_one(guarded: httpx.Client) -> None:
    body = wire.packb(case("segmented_sum").fields)
    problem(guarded.post(SUM, content=body, headers=MSGPACK), 401, "unauthorized")
    authorization = {"authorization": "Bearer first-token"}
    assert guarded.post(SUM, content=body, headers={**MSGPACK, **authorization}).is_success
    assert guarded.get("/v1/metadata", headers=authorization).is_success
    assert all(guarded.get(path).is_success for path in HEALTH)
