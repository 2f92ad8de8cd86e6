"""Arrays of every layout, and messages around them, for property tests."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

CODES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "transposed": np.transpose,
    "reversed": lambda array: array[::-1] if array.ndim else array,
    "strided": lambda array: array[..., ::2] if array.ndim else array,
    "sliced": lambda array: array[1:] if array.ndim else array,
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "0-d kept": lambda array: array,
}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Draw an array of any sendable type, byte order, shape (0-d and size 0 too) and layout."""
    dtype = np.dtype(draw(st.sampled_from("<>")) + draw(st.sampled_from(CODES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    array = draw(hnp.arrays(dtype, shape))
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](array)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
)

KEYS = st.text(max_size=8).filter(lambda key: key != "nd")


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Maps and lists of leaves, nested."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=8,
    )


def array_map(**changes: Any) -> dict[bytes, Any]:
    """Return the map of a good (2, 3) float32 array with some entries changed; `...` drops one."""
    good: dict[bytes, Any] = {
        b"nd": True,
        b"type": "<f4",
        b"kind": b"",
        b"shape": [2, 3],
        b"data": bytes(24),
    }
    changed = good | {key.encode(): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not ...}


def message(**changes: Any) -> bytes:
    """Return a message whose field `x` is the array map of `array_map`."""
    return msgpack.packb({"x": array_map(**changes)})


def same_bits(left: Any, right: Any) -> bool:
    """Compare two trees; floats and arrays by their bits, arrays in value order."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_bits(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_bits, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return np.float64(left).tobytes() == np.float64(right).tobytes()
    return type(left) is type(right) and bool(left == right)
