"""The command line, in processes of its own."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxlib import xla_client

from segops_client import wire
from segops_service import Settings, __version__
from segops_service.cli import main, prepare_jax
from tests.service.helpers import MSGPACK, Process, case, post, problem, process

COMMAND = [sys.executable, "-m", "segops_service"]


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "platform", "words"),
    [
        ([], "cpu", "command"),
        (["serve", "--port", "many"], "cpu", "port"),
        (["serve"], "tpu", "platform"),
    ],
)
def test_a_wrong_setting_is_named_and_starts_nothing(
    arguments: list[str],
    platform: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SEGOPS_PLATFORM", platform)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [*COMMAND, "serve", "--port", str(taken.getsockname()[1])],
            env={**os.environ, "SEGOPS_PLATFORM": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode != 0
    assert "address already in use" in done.stderr


def test_a_certificate_without_its_key_is_named_and_starts_nothing(tmp_path: Path) -> None:
    certificate = tmp_path / "chain.pem"
    certificate.touch()
    done = subprocess.run(
        [*COMMAND, "serve"],
        env={**os.environ, "SEGOPS_PLATFORM": "cpu", "SEGOPS_TLS_CERTIFICATE": str(certificate)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "SEGOPS_TLS_KEY" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("share", "given", "expected"),
    [
        (0, {}, {"PYTHON_CLIENT_PREALLOCATE": "false"}),
        (0.5, {}, {"PYTHON_CLIENT_PREALLOCATE": "true", "CLIENT_MEM_FRACTION": "0.5"}),
        (0.5, {"PYTHON_CLIENT_PREALLOCATE": "false", "CLIENT_MEM_FRACTION": "0.1"}, {}),
        (0.5, {"PYTHON_CLIENT_MEM_FRACTION": "0.1"}, {"PYTHON_CLIENT_PREALLOCATE": "true"}),
    ],
)
def test_the_share_of_a_gpu_s_memory_is_told_to_jax_unless_the_operator_did(
    share: float,
    given: dict[str, str],
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {f"XLA_{name}": value for name, value in given.items()})
    prepare_jax(Settings(preallocate=share))
    assert os.environ == {f"XLA_{name}": value for name, value in {**given, **expected}.items()}
    options = xla_client.generate_pjrt_gpu_plugin_options()  # refuses both names of the share
    assert options["preallocate"] is (os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true")


def test_an_option_overrides_its_variable(server: Process) -> None:
    assert server.variables["SEGOPS_PORT"] == "1"
    assert server.client.base_url.port != 1


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_accepted_requests_finish_and_exits_with_0(stop: signal.Signals) -> None:
    drawn = case("segmented_rms_norm", "float64", rows=1_000_000, segments=1000)
    body = wire.packb({**drawn.all_fields, "want": ["value", "vjp", "jvp", "hvp"]})
    statuses: list[int] = []
    with process() as server:
        server.wait_until_ready()

        def ask() -> None:
            response = server.client.post("/v1/segmented_rms_norm", content=body, headers=MSGPACK)
            statuses.append(response.status_code)

        request = threading.Thread(target=ask)
        request.start()
        time.sleep(0.2)
        assert not statuses
        server.popen.send_signal(stop)
        request.join()
        assert server.popen.wait(60) == 0
    assert statuses == [200]
    assert not [line for line in server.log if "Traceback" in line]


def test_a_gpu_that_was_asked_for_and_is_missing_leaves_the_server_unready() -> None:
    if jax.default_backend() == "gpu":
        pytest.skip("this machine has a GPU")
    with process(SEGOPS_PLATFORM="cuda") as server:
        deadline = time.monotonic() + 60
        while "cuda" not in (document := _not_ready(server))["detail"].lower():
            assert time.monotonic() < deadline, document
            time.sleep(0.05)
        assert server.client.get("/v1/health/live").status_code == 200
        metadata = server.client.get("/v1/metadata").json()
        assert (metadata["requested_platform"], metadata["platform"]) == ("cuda", None)
        body = wire.packb(case("segmented_sum").fields)
        response = server.client.post("/v1/segmented_sum", content=body, headers=MSGPACK)
        problem(response, 503, "not-ready")


def _not_ready(server: Process) -> dict[str, str]:
    return problem(server.client.get("/v1/health/ready"), 503, "not-ready")


def test_the_platform_that_computes_is_named(server: Process) -> None:
    metadata = server.client.get("/v1/metadata").json()
    assert (metadata["requested_platform"], metadata["platform"]) == ("cpu", "cpu")


def test_a_server_asked_for_the_cpu_sets_up_nothing_else(server: Process) -> None:
    assert "JAX_LOGGING_LEVEL" in server.variables
    assert not [line for line in server.log if "backend 'tpu'" in line]


def test_a_process_computes_in_float64(server: Process) -> None:
    fields = {"x": np.ones(2), "idx": np.zeros(2, "i4"), "num_segments": 1}
    assert post(server.client, "segmented_sum", **fields)["value"].dtype == np.float64
