"""One server for all tests that answer from a script."""

from collections.abc import Callable, Iterator

import pytest

from tests.client.helpers import Script, Stage, serve


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    stage = Stage()
    with serve(stage) as stage.url:
        yield stage


@pytest.fixture
def play(stage: Stage) -> Callable[[Script], str]:
    """Return a function that puts a script on the stage and tells where it plays."""
    return stage.play
