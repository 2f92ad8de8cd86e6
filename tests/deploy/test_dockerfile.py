"""The Dockerfile through hadolint, and the promises it makes."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from segops_service.settings import Settings

HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def lint(dockerfile: str) -> list[str]:
    """Return the rules that `dockerfile` breaks."""
    command = [HADOLINT, "--no-color", "--format", "json", "-"]
    done = subprocess.run(command, input=dockerfile, capture_output=True, text=True, check=False)
    return [fault["code"] for fault in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> str:
    return (root / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def runtime(dockerfile: str) -> dict[str, str]:
    """Instructions of the last stage; of repeated ones the last, as the engine takes them."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", dockerfile, flags=re.M))
    last_stage = text[text.rindex("\nFROM ") :].strip()
    return {word: rest.strip() for word, rest in re.findall(r"^([A-Z]+)\s+(.*)$", last_stage, re.M)}


def test_dockerfile_is_clean(dockerfile: str) -> None:
    assert lint(dockerfile) == []


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (('CMD ["serve"]', "CMD serve"), "DL3025"),
        (("-slim-bookworm AS build", "-slim-bookworm AS build\nRUN sudo true"), "DL3004"),
        (("WORKDIR /src", "WORKDIR src"), "DL3000"),
    ],
)
def test_linter_refuses_a_broken_dockerfile(
    dockerfile: str, damage: tuple[str, str], rule: str
) -> None:
    assert damage[0] in dockerfile
    assert rule in lint(dockerfile.replace(*damage))


@pytest.mark.parametrize("instruction", ["ENTRYPOINT", "CMD"])
def test_sigterm_reaches_the_server_and_not_a_shell(
    runtime: dict[str, str], instruction: str
) -> None:
    words = json.loads(runtime[instruction])
    assert words
    assert words[0] not in {"sh", "bash", "/bin/sh", "/bin/bash"}


def test_image_does_not_run_as_root(runtime: dict[str, str]) -> None:
    user, group = runtime["USER"].split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_health_check_waits_for_the_warm_up(runtime: dict[str, str]) -> None:
    options, command = runtime["HEALTHCHECK"].split("CMD")
    assert json.loads(command) == ["python", "/opt/segops/healthcheck.py"]
    period = re.search(r"--start-period=(\d+)s", options)
    assert period is not None
    assert int(period[1]) >= 120


def test_kernel_caches_live_in_the_volume(runtime: dict[str, str]) -> None:
    assert json.loads(runtime["VOLUME"]) == ["/cache"]
    assert "XDG_CACHE_HOME=/cache" in runtime["ENV"]
    assert "JAX_COMPILATION_CACHE_DIR=/cache/jax" in runtime["ENV"]


def test_environment_names_settings_that_exist(dockerfile: str) -> None:
    known = {f"SEGOPS_{field}".upper() for field in Settings.model_fields}
    named = set(re.findall(r"(SEGOPS_[A-Z_]+)=", dockerfile))
    assert named
    assert named <= known


def test_every_choice_of_cuda_has_its_stage(dockerfile: str) -> None:
    stages = re.findall(r"AS cuda-(\w+)\nENV SEGOPS_PLATFORM=(\w+)", dockerfile)
    assert dict(stages) == {"none": "cpu", "12": "cuda", "13": "cuda"}


def test_build_context_holds_what_is_copied(root: Path, dockerfile: str) -> None:
    context = [
        line[1:].rstrip("/")
        for line in (root / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.M)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (root / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in context), source
