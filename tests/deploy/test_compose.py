"""docker-compose.yml against the schema of the Compose specification, and the promises it makes.

check-jsonschema ships the specification's own schema, so no engine and no network is needed.
"""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from segops_service.settings import Settings

SERVICES = ("gpu", "cpu")
UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(duration: str) -> int:
    parts = re.findall(r"(\d+)([hms])", duration)
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def schema_faults(document: dict[str, Any], folder: Path) -> str:
    """Return what the validator says about `document`; empty when it is valid."""
    path = folder / "compose.yml"
    path.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((root / "docker-compose.yml").read_text())
    return document


def test_compose_file_follows_the_specification(compose: dict[str, Any], tmp_path: Path) -> None:
    assert schema_faults(compose, tmp_path) == ""


def misspell_a_key(service: dict[str, Any]) -> None:
    service["heathcheck"] = service.pop("healthcheck")


def mistype_a_value(service: dict[str, Any]) -> None:
    service["read_only"] = ["yes"]


def lose_the_capabilities_to_another_list_item(service: dict[str, Any]) -> None:
    devices = service["deploy"]["resources"]["reservations"]["devices"]
    devices[:] = [{key: value} for key, value in devices[0].items()]


@pytest.mark.parametrize(
    "damage", [misspell_a_key, mistype_a_value, lose_the_capabilities_to_another_list_item]
)
def test_validator_refuses_a_broken_compose_file(
    compose: dict[str, Any], tmp_path: Path, damage: Any
) -> None:
    broken = copy.deepcopy(compose)
    damage(broken["services"]["gpu"])
    assert "gpu" in schema_faults(broken, tmp_path)


def test_gpu_is_reserved_in_one_list_item(compose: dict[str, Any]) -> None:
    devices = compose["services"]["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_gpu_service_never_computes_on_the_cpu_in_silence(compose: dict[str, Any]) -> None:
    gpu = compose["services"]["gpu"]
    assert gpu["environment"]["SEGOPS_PLATFORM"] == "cuda"
    assert gpu["build"]["args"]["INSTALL_CUDA"] in {"12", "13"}


def test_plain_up_starts_the_gpu_service_alone(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == set(SERVICES)
    assert "profiles" not in compose["services"]["gpu"]
    assert compose["services"]["cpu"]["profiles"] == ["cpu"]


def test_cpu_service_needs_no_gpu(compose: dict[str, Any]) -> None:
    cpu = compose["services"]["cpu"]
    assert cpu["environment"]["SEGOPS_PLATFORM"] == "cpu"
    assert cpu["build"]["args"]["INSTALL_CUDA"] == "none"
    assert "deploy" not in cpu


def test_images_of_the_two_builds_do_not_overwrite_each_other(compose: dict[str, Any]) -> None:
    assert len({compose["services"][name]["image"] for name in SERVICES}) == len(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_environment_names_settings_that_exist(compose: dict[str, Any], name: str) -> None:
    known = {f"SEGOPS_{field}".upper() for field in Settings.model_fields}
    assert set(compose["services"][name]["environment"]) <= known


@pytest.mark.parametrize("name", SERVICES)
def test_container_is_stopped_only_after_the_drain(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    drain = service["environment"].get(
        "SEGOPS_SHUTDOWN_SECONDS", Settings.model_fields["shutdown_seconds"].default
    )
    assert seconds(service["stop_grace_period"]) > int(drain)


@pytest.mark.parametrize("name", SERVICES)
def test_warm_up_is_not_taken_for_ill_health(compose: dict[str, Any], name: str) -> None:
    check = compose["services"][name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert seconds(check["start_period"]) >= 120
    assert seconds(check["start_interval"]) <= 5
    assert seconds(check["timeout"]) < seconds(check["interval"])


@pytest.mark.parametrize("name", SERVICES)
def test_container_runs_without_privileges(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    user, group = service["user"].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged", False)
    assert "cap_add" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_read_only_container_can_still_compile_kernels(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["volumes"] == ["cache:/cache"]
    assert "cache" in compose["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_host_publishes_on_loopback_unless_told_otherwise(
    compose: dict[str, Any], name: str
) -> None:
    assert compose["services"][name]["ports"] == ["${SEGOPS_PUBLISH:-127.0.0.1:8000}:8000"]
