"""Shared by all tests: four virtual CPU devices, where no other number was asked for.

XLA reads the flag when the first test starts a backend, wherever that test lies.
"""

import os

FLAG = "--xla_force_host_platform_device_count"
flags = os.environ.get("XLA_FLAGS", "")
if FLAG not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=4".strip()
