"""The three distributions as pip would get them, and the pins they are tested with."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTIONS = {
    "segops_jax": (".", "segops"),
    "segops_client": ("clients/python", "segops_client"),
    "segops_service": ("service", "segops_service"),
}
PYTHONS = ("3.11", "3.12", "3.13")


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def requirements(folder: Path) -> list[Requirement]:
    table = project(folder)
    extras = table.get("optional-dependencies", {}).values()
    return [Requirement(line) for group in (table["dependencies"], *extras) for line in group]


def pins(root: Path, python: str) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text().splitlines()
    entries = [Requirement(line) for line in lines if line and not line.startswith("#")]
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    return {
        canonicalize_name(entry.name): str(entry.specifier).removeprefix("==")
        for entry in entries
        if entry.marker is None or entry.marker.evaluate(environment)
    }


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def wheel(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> zipfile.ZipFile:
    folder, _ = DISTRIBUTIONS[request.param]
    out = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", out]
    subprocess.run(command, cwd=root / folder, check=True, capture_output=True)
    (path,) = out.glob(f"{request.param}-*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_its_own_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    distribution = Path(str(wheel.filename)).name.split("-")[0]
    _, package = DISTRIBUTIONS[distribution]
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {package}
    assert f"{package}/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]


def test_wheel_has_the_version_of_the_version_file(root: Path, wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))
    assert metadata["Version"] == (root / "VERSION").read_text().strip()


def test_version_is_written_in_one_place(root: Path) -> None:
    for folder, _ in DISTRIBUTIONS.values():
        assert "version" in project(root / folder)["dynamic"]


def test_changelog_tells_of_this_version(root: Path) -> None:
    version = (root / "VERSION").read_text().strip()
    assert f"## [{version}]" in (root / "CHANGELOG.md").read_text()


def test_client_does_not_bring_jax(root: Path) -> None:
    names = {requirement.name for requirement in requirements(root / "clients/python")}
    assert names == {"httpx", "msgpack", "numpy"}


@pytest.mark.parametrize("folder", ["service", "clients/python"])
def test_licence_of_each_distribution_is_the_same(root: Path, folder: str) -> None:
    assert (root / folder / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_to_a_version_it_allows(root: Path, python: str) -> None:
    own = {canonicalize_name(name) for name in DISTRIBUTIONS}
    pinned = pins(root, python)
    for folder, _ in DISTRIBUTIONS.values():
        for requirement in requirements(root / folder):
            name = canonicalize_name(requirement.name)
            if name not in own:
                assert name in pinned, f"{name} is not pinned for Python {python}"
                assert requirement.specifier.contains(pinned[name], prereleases=True), name


def test_constraints_name_packages_and_no_addresses(root: Path) -> None:
    text = (root / "constraints.txt").read_text()
    assert not re.search(r"://|--|@", text)
