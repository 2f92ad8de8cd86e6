"""What is going on in the service at this moment."""

from dataclasses import asdict
from typing import Any

from segops_service.admission import Admission
from segops_service.engine import Engine
from segops_service.settings import Settings


def status(settings: Settings, engine: Engine, admission: Admission) -> dict[str, Any]:
    """Describe the queue, what is in flight, the cache, and each device.

    Parameters
    ----------
    settings
        Source of the limits of the queue.
    engine
        What computes.
    admission
        What is under way.

    Returns
    -------
    dict
        Plain values that JSON can carry.
    """
    snapshot = engine.snapshot()
    return {
        "ready": snapshot.obstacle is None,
        "obstacle": snapshot.obstacle,
        "queue": {
            "requests": admission.requests,
            "max_requests": settings.queue_requests,
            "bytes": admission.bytes,
            "max_bytes": settings.queue_bytes,
            "arriving": admission.arriving,
            "waiting": snapshot.queued,
            "refused": admission.refused,
        },
        "in_flight": sum(device.requests_under_way for device in snapshot.devices),
        "cache": asdict(snapshot.cache),
        "devices": [asdict(device) for device in snapshot.devices],
    }
