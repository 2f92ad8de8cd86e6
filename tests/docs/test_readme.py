"""What the README and the table of errors say is what the code does."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import segops
from segops_service import problems
from segops_service.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "segops_service", "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(address)
            yield address
        finally:
            server.terminate()


def wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/v1/health/ready").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{address} did not become ready")


def test_first_call_in_process_runs() -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[0], names)
    assert names["hessian"].shape == (3, 3, 3, 3)  # type: ignore[attr-defined]


def test_first_call_with_curl_gives_the_answer_shown(url: str) -> None:
    command = next(block for block in blocks("sh") if "curl" in block)
    body = json.loads(command[command.index("{") : command.rindex("}") + 1])
    path = re.search(r"127\.0\.0\.1:8000(\S+)", command)
    assert path is not None
    answer = httpx.post(url + path[1], json=body, timeout=60)
    assert answer.json() == json.loads(blocks("json")[0])


def test_first_call_with_the_client_runs(url: str) -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[1].replace("http://127.0.0.1:8000", url), names)
    assert names["cotangents"]["x"].shape == (1000, 3)  # type: ignore[index]


def test_every_setting_is_listed_with_its_default() -> None:
    for name, field in Settings.model_fields.items():
        row = f"| `SEGOPS_{name.upper()}` | `{field.default}` | {field.description} |"
        assert row in README, f"{row} is missing"


def test_every_problem_type_is_listed_with_its_status() -> None:
    kinds = [kind for kind in vars(problems).values() if isinstance(kind, problems.Problem)]
    assert kinds
    for kind in kinds:
        assert f"| `{kind.type}` | {kind.status} | {kind.title} |" in ERRORS


def test_every_error_class_of_the_library_is_explained() -> None:
    errors = [name for name in segops.__all__ if name.endswith("Error")]
    assert {"ArgumentTypeError", "SegmentIdError"} <= set(errors)
    for name in set(errors) - {"ArgumentError"}:
        assert f"`{name}`" in ERRORS


def test_every_relative_link_leads_to_a_file() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
