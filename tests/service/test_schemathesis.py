"""The server does what its OpenAPI document says, on requests that Schemathesis makes from it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis

from segops_service import Engine, Settings, create_app, paths
from tests.fuzz import hooks
from tests.service.helpers import serving

OPEN = Settings(platform="cpu")
GUARDED = Settings(platform="cpu", tokens="secret")
TOKEN = {"Authorization": "Bearer secret"}


def document(settings: Settings) -> dict[str, Any]:
    return create_app(settings, Engine(settings)).framework.openapi()


def promise(settings: Settings, examples: int) -> schemathesis.BaseSchema:
    """What a server of these settings promises; the same requests each time, unlike `make fuzz`."""
    config = tomllib.loads(Path(hooks.__file__).with_name("schemathesis.toml").read_text())
    generation = {"max-examples": examples, "deterministic": True}
    return schemathesis.openapi.from_dict(
        document(settings),
        config=schemathesis.Config.from_dict({**config, "seed": 1, "generation": generation}),
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    """Client of a server that wants a token."""
    with serving(GUARDED) as client:
        yield client


of_open, of_guarded = promise(OPEN, 80), promise(GUARDED, 5)


def test_the_document_is_sound_and_the_one_that_is_served(
    client: httpx.Client, guarded: httpx.Client
) -> None:
    of_open.validate()
    of_guarded.validate()
    assert client.get(paths.OPENAPI).json() == document(OPEN)
    assert guarded.get(paths.OPENAPI, headers=TOKEN).json() == document(GUARDED)


@of_open.parametrize()
def test_an_open_server_keeps_its_word(client: httpx.Client, case: schemathesis.Case) -> None:
    case.call_and_validate(str(client.base_url))


@of_guarded.parametrize()
def test_a_server_with_a_token_keeps_its_word(
    guarded: httpx.Client, case: schemathesis.Case
) -> None:
    case.call_and_validate(str(guarded.base_url), headers=TOKEN)
