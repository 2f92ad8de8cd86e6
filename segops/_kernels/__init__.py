"""Warp kernels, one module a shape of work.

Every array is batched: rows are ``(B, N, W)``, segments ``(B, S, W)`` and ids ``(B, N)``. An
operand shared by the whole batch has a leading axis of one and is read in place. The ``launch_*``
functions, one a kind and dtype, run on Warp arrays and are what a JAX lowering calls.
"""
