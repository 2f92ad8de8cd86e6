"""Load and faults together: sound requests among malformed, aborted, late and slow ones.

``python -m benchmarks.soak --seconds 120`` runs the service under them, checks every answer against
NumPy and says whether the service held.
"""
