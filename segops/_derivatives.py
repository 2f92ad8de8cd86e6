"""First and second derivatives of an operation, by argument name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from segops import _arguments as arguments
from segops import _ops
from segops._errors import ArgumentTypeError, ArgumentValueError

Array = jax.Array
Op = str | Callable[..., Array]

OPS: dict[str, Callable[..., Array]] = {
    op.__name__: op
    for op in (
        _ops.segmented_sum,
        _ops.segmented_dot,
        _ops.segmented_mul,
        _ops.segmented_mean,
        _ops.segmented_rms_norm,
        _ops.segmented_matvec,
    )
}


def value_and_vjp(
    op: Op, *args: Any, cotangent: ArrayLike | None = None, **options: Any
) -> tuple[Array, dict[str, Array]]:
    r"""Value of an operation and the derivative of its product with a cotangent.

    .. math:: f(u), \qquad \frac{\partial \langle g, f(u) \rangle}{\partial u}

    Parameters
    ----------
    op : str or callable
        One of the six operations or its name.
    *args
        The operation's arguments.
    cotangent : array_like, optional
        :math:`g`, with the shape and dtype of the value; ones by default.
    **options
        The operation's keyword arguments.

    Returns
    -------
    value : jax.Array
    cotangents : dict of str to jax.Array
        For each differentiable argument by name, an array of its shape.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument or the cotangent cannot be used.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x, idx = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 0, 1])
    >>> value, cotangents = segops.value_and_vjp("segmented_sum", x, idx, 2, cotangent=[1.0, 3.0])
    >>> value.tolist(), cotangents["x"].tolist()
    ([3.0, 4.0], [1.0, 1.0, 3.0])
    """
    call = _parse(op, args, options)
    value, pull = jax.vjp(call.function, call.operands)
    cotangents = pull(_cotangent(call, cotangent, value))[0]
    return value, call.in_order(cotangents)


def jvp(op: Op, *args: Any, tangents: Mapping[str, ArrayLike], **options: Any) -> Array:
    r"""Directional derivative of an operation.

    .. math:: \mathrm{d}f(u) \cdot t

    Parameters
    ----------
    op, *args, **options
        As in `value_and_vjp`.
    tangents : mapping of str to array_like
        :math:`t` by argument name, each with its argument's shape and dtype. Arguments left out
        have tangent zero.

    Returns
    -------
    jax.Array
        With the shape of the value.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument or a tangent cannot be used.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x, idx = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 0, 1])
    >>> segops.jvp("segmented_mean", x, idx, 2, tangents={"x": [1.0, 0.0, 5.0]}).tolist()
    [0.5, 5.0]
    """
    call = _parse(op, args, options)
    return jax.jvp(call.function, (call.operands,), (_tangents(call, tangents),))[1]


def hvp(
    op: Op,
    *args: Any,
    tangents: Mapping[str, ArrayLike],
    cotangent: ArrayLike | None = None,
    **options: Any,
) -> dict[str, Array]:
    r"""Hessian of an operation's product with a cotangent, times a tangent.

    .. math:: \frac{\partial^2 \langle g, f(u) \rangle}{\partial u^2} \cdot t

    Parameters
    ----------
    op, *args, **options
        As in `value_and_vjp`.
    tangents : mapping of str to array_like
        :math:`t`, as in `jvp`.
    cotangent : array_like, optional
        :math:`g`, as in `value_and_vjp`.

    Returns
    -------
    dict of str to jax.Array
        For each differentiable argument by name, an array of its shape. Mixed derivatives are
        included: in a bilinear operation the tangent of one argument gives the other's result.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument, a tangent or the cotangent cannot be used.

    Examples
    --------
    >>> import jax.numpy as jnp, segops
    >>> x, y = jnp.ones((1, 3)), jnp.array([2.0])
    >>> products = segops.hvp("segmented_mul", x, y, jnp.array([0]), 1, tangents={"y": [1.0]})
    >>> products["x"].tolist(), products["y"].tolist()
    ([[1.0, 1.0, 1.0]], [0.0])
    """
    call = _parse(op, args, options)

    def pulled(operands: dict[str, Array]) -> dict[str, Array]:
        value, pull = jax.vjp(call.function, operands)
        return pull(_cotangent(call, cotangent, value))[0]

    products = jax.jvp(pulled, (call.operands,), (_tangents(call, tangents),))[1]
    return call.in_order(products)


@dataclass(frozen=True)
class _Call:
    name: str
    operands: dict[str, Array]
    function: Callable[[dict[str, Array]], Array]

    def in_order(self, results: dict[str, Array]) -> dict[str, Array]:
        """Return results in the order of the arguments; JAX sorts them by name."""
        return {name: results[name] for name in self.operands}


def _parse(op: Op, args: tuple[Any, ...], options: dict[str, Any]) -> _Call:
    """Split a call into its differentiable operands and a function of them."""
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in OPS or (op is not OPS[name] and op != name):
        raise ArgumentValueError(
            "op",
            f"argument `op` is {op!r}; pass one of the functions {', '.join(OPS)} itself, not"
            " wrapped, or its name.",
        )
    bound = inspect.signature(OPS[name]).bind(*args, **options)
    fixed = {k: v for k, v in bound.arguments.items() if k in _FIXED}
    operands = {k: v for k, v in bound.arguments.items() if k not in _FIXED}
    arrays = dict(zip(operands, arguments.floats(name, **operands), strict=True))
    return _Call(name, arrays, lambda operands: OPS[name](**operands, **fixed))


_FIXED = ("idx", "num_segments", "indices_are_sorted")


def _cotangent(call: _Call, cotangent: ArrayLike | None, value: Array) -> Array:
    if cotangent is None:
        return jnp.ones_like(value)
    return _alike(call.name, "cotangent", cotangent, value, "the value")


def _tangents(call: _Call, tangents: Mapping[str, ArrayLike]) -> dict[str, Array]:
    if not isinstance(tangents, Mapping):
        raise ArgumentTypeError(
            "tangents",
            f"`{call.name}`: argument `tangents` is a {type(tangents).__name__}; pass a mapping"
            " from argument names to arrays, for example `{'x': t}`.",
        )
    unknown = [name for name in tangents if name not in call.operands]
    if unknown:
        raise ArgumentValueError(
            "tangents",
            f"`{call.name}`: argument `tangents` names {', '.join(map(repr, unknown))}; its"
            f" differentiable arguments are {', '.join(map(repr, call.operands))}.",
        )
    return {
        name: _alike(call.name, f"tangents.{name}", tangents[name], operand, f"`{name}`")
        if name in tangents
        else jnp.zeros_like(operand)
        for name, operand in call.operands.items()
    }


def _alike(op: str, name: str, given: ArrayLike, like: Array, what: str) -> Array:
    (array,) = arguments.floats(op, **{name: given})
    if array.dtype != like.dtype:
        raise ArgumentTypeError(
            name,
            f"`{op}`: argument `{name}` is {array.dtype}; pass the dtype of {what}, {like.dtype}.",
        )
    arguments.shape(op, name, array, like.shape)
    return array
