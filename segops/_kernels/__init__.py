"""Warp kernels, one module a shape of work.

Every array is batched: ``x`` and ``y`` are ``(B, N, W)`` or ``(B, S, W)``, ``ids`` is ``(B, N)``. An
operand shared by the whole batch has a leading axis of one and is read in place. Each
``launch_*`` function runs a kernel on Warp arrays and is what a JAX lowering calls.
"""
