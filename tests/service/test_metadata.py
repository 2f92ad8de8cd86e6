"""What the service says about itself is true."""

from importlib.metadata import version

import httpx
import jax
import pytest

from segops_service import Engine, Settings
from segops_service.metadata import metadata
from segops_service.operations import OPERATIONS


def test_metadata_names_versions_platform_limits_and_operations(client: httpx.Client) -> None:
    described = client.get("/v1/metadata").json()
    assert described["versions"]["jax"] == version("jax")
    assert described["versions"]["warp-lang"] == version("warp-lang")
    assert (described["requested_platform"], described["platform"]) == ("cpu", "cpu")
    assert [(device["id"], device["platform"]) for device in described["devices"]] == [
        (device.id, "cpu") for device in jax.devices("cpu")
    ]
    assert described["ready"] is True
    assert described["limits"] == {
        name: getattr(Settings(), name)
        for name in (
            "max_body_bytes",
            "max_json_bytes",
            "max_rows",
            "max_segments",
            "max_output_bytes",
        )
    }
    assert described["ops"].keys() == OPERATIONS.keys()
    assert described["ops"]["segmented_mul"]["operands"] == ["x", "y"]
    assert described["ops"]["segmented_mul"]["forms"] == [
        {"x": "(N, 3)", "y": "(S,)", "value": "(N, 3)"}
    ]


def test_a_platform_is_not_claimed_before_its_device_is_known() -> None:
    settings = Settings(platform="cuda")
    described = metadata(settings, Engine(settings))
    assert (described["platform"], described["devices"], described["ready"]) == (None, [], False)
    assert described["requested_platform"] == "cuda"


def test_versions_are_looked_up_once(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = client.get("/v1/metadata").json()["versions"]

    def look_up(distribution: str) -> str:
        raise AssertionError(f"{distribution} is looked up on the event loop again")

    monkeypatch.setattr("segops_service.metadata.version", look_up)
    assert client.get("/v1/metadata").json()["versions"] == expected
