"""Measurements of segops beside the ``jax.ops`` composition and a peer package.

``python -m benchmarks`` times the ops and their derivatives; ``python -m benchmarks.transforms``
tries every JAX transform on every op and says which results are right.
"""
