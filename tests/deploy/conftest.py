"""Shared by the tests of what ships: packages, make targets and container files."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """Top folder of the repository."""
    return Path(__file__).parents[2]
