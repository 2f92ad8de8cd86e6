"""The functions of a backend with operands of one dtype, each call timed."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import Backend


class Calls:
    """A backend whose functions round float operands to a dtype and answer in float64.

    Attributes
    ----------
    seconds
        What each call took, from NumPy arrays to NumPy arrays.
    """

    def __init__(self, backend: Backend, dtype: str) -> None:
        self._backend = backend
        self._dtype = np.dtype(dtype)
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._backend, name))

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        args, options = _each(self._rounded, args), _each(self._rounded, options)
        started = time.perf_counter()
        answer = _each(np.asarray, function(*args, **options))
        self.seconds.append(time.perf_counter() - started)
        return _each(self._widened, answer)

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.astype(self._dtype)
        return value

    def _widened(self, array: NDArray[Any]) -> NDArray[np.float64]:
        if array.dtype != self._dtype:
            raise TypeError(f"an answer is {array.dtype}, not {self._dtype}")
        return array.astype(np.float64)


def _each(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to what tuples and dictionaries hold."""
    if isinstance(tree, tuple):
        return tuple(_each(function, value) for value in tree)
    if isinstance(tree, dict):
        return {name: _each(function, value) for name, value in tree.items()}
    return function(tree)
