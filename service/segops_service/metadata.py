"""What the service says about itself."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from segops_service.engine import Engine
from segops_service.operations import OPERATIONS, Operation, spell
from segops_service.settings import Settings
from segops_service.workers import platform_name

_DISTRIBUTIONS = (
    "segops-service",
    "segops-jax",
    "segops-client",
    "jax",
    "jaxlib",
    "warp-lang",
    "numpy",
)
_LIMITS = ("max_body_bytes", "max_json_bytes", "max_rows", "max_segments", "max_output_bytes")


def metadata(settings: Settings, engine: Engine) -> dict[str, Any]:
    """Describe the running service.

    Parameters
    ----------
    settings
        Source of the limits.
    engine
        Source of the platform and the devices: null, and none, until it knows them.

    Returns
    -------
    dict
        Plain values that JSON can carry.
    """
    return {
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "requested_platform": engine.requested_platform,
        "platform": next(map(platform_name, engine.devices), None),
        "devices": [_device(device) for device in engine.devices],
        "ready": engine.obstacle is None,
        "limits": settings.model_dump(include=set(_LIMITS)),
        "ops": {name: _operation(operation) for name, operation in OPERATIONS.items()},
    }


def _device(device: jax.Device) -> Mapping[str, Any]:
    return {"id": device.id, "kind": device.device_kind, "platform": platform_name(device)}


def _operation(operation: Operation) -> Mapping[str, Any]:
    return {
        "summary": operation.summary,
        "operands": operation.operands,
        "forms": [
            {
                **{name: spell(layout) for name, layout in form.operands.items()},
                "value": spell(form.value),
            }
            for form in operation.forms
        ],
    }


@cache  # it reads files
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


SERVICE_VERSION = _version("segops-service") or "0+uninstalled"
"""Version of this service; a placeholder when it runs from a tree that is not installed."""
