"""Differentiable segment operations for JAX on NVIDIA Warp kernels.

Rows carry a segment id; six operations reduce or scale them by segment. All are differentiable to
any order in every float operand, in forward and reverse mode, and work under `jax.jit`, `jax.vmap`,
`jax.lax.scan`, `jax.checkpoint` and `jax.shard_map`, on the CPU and on CUDA devices.

Ids may come in any order. Those outside ``[0, num_segments)`` are dropped: their rows add nothing
to a reduction, get 0 from a broadcast and receive exactly 0 as gradient. A segment's result
depends on its own rows in their order and on nothing else.
"""

from importlib.metadata import version

from segops._arguments import check_segment_ids
from segops._derivatives import hvp, jvp, value_and_vjp
from segops._errors import ArgumentError, ArgumentTypeError, ArgumentValueError, SegmentIdError
from segops._ops import (
    segmented_dot,
    segmented_matvec,
    segmented_mean,
    segmented_mul,
    segmented_rms_norm,
    segmented_sum,
)

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "SegmentIdError",
    "check_segment_ids",
    "hvp",
    "jvp",
    "segmented_dot",
    "segmented_matvec",
    "segmented_mean",
    "segmented_mul",
    "segmented_rms_norm",
    "segmented_sum",
    "value_and_vjp",
]

__version__ = version("segops-jax")
