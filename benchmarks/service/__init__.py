"""Measurements of the service, each beside a bare route of the same server where that says more.

``python -m benchmarks.service`` runs them all; ``python -m benchmarks.soak`` is the load and fault
harness that shares their parts.
"""
