"""Addresses that are told apart before the router sees them: who may ask, and what is logged."""

HEALTH = frozenset(f"/v{version}/health/{kind}" for version in (1, 2) for kind in ("live", "ready"))
METRICS = "/v1/metrics"
DOCS = "/docs"
OPENAPI = "/openapi.json"

PROBES = HEALTH | {METRICS}
"""What machines ask every few seconds."""
