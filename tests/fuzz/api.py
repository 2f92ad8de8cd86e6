"""Search through the front door: ``python -m tests.fuzz.api SECONDS`` has Schemathesis call."""

import os
import subprocess
import sys
from pathlib import Path

from segops_service import paths
from tests.service.helpers import process

CONFIG = Path(__file__).with_name("schemathesis.toml")


def main(seconds: int) -> int:
    with process() as server:
        server.wait_until_ready()
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIG, "fuzz"]
        url = f"{server.client.base_url}{paths.OPENAPI}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [*command, f"--max-time={seconds}", url], check=False, env=environment
        )
        assert server.popen.poll() is None, "the server died"
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
