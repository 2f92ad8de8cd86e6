"""The closed family of primitives and its rules.

Every primitive works on a batch: operands are ``(B, N, W)`` rows, ``(B, S, W)`` segments and
``(B, N)`` ids, where a leading axis of one is shared by the whole batch. Out-of-range ids drop.
With ``u . v`` the product of two rows, ``n[s]`` the number of rows of segment ``s`` and sums over
the rows ``i`` with ``idx[i] == s``::

    sum     out[s] = sum x[i]              gather  out[i] = y[idx[i]]
    dot     out[s] = sum x[i] . y[i]       mul     out[i] = x[i] y[idx[i]]
    outer   out[s] = sum x[i] (x) y[i]     matvec  out[i] = y[idx[i]]^T x[i]
    rms     out[s] = sqrt(sum x[i] . x[i] / n[s])
    div     out[i] = x[i] / y[idx[i]], and 0 where that y is 0

``sum``, ``dot``, ``gather`` and ``mul`` divide by ``n[s]`` where ``mean`` is set, which pairs a mean with
its adjoint. All but ``rms``, and ``div`` in ``y``, are linear in each operand, so a JVP binds
the primitive once per tangent and a transpose binds the adjoint:

======  ===========  ===========
of      in x         in y
======  ===========  ===========
sum     gather(g)
gather               sum(g)
dot     mul(y, g)    mul(x, g)
mul     mul(g, y)    dot(x, g)
outer   matvec(y, g^T)  matvec(x, g)
matvec  matvec(g, y^T)  outer(x, g)
div     div(g, y)
======  ===========  ===========

For ``r = rms(x)`` and the normalised rows ``u = div(x, r)``, the tangent is ``dr = dot(u, dx) / n``;
for ``q = div(x, y)`` it is ``dq = div(dx, y) - div(mul(q, dy), y)``. No power of ``r`` beyond the first
is formed, and where ``r`` is 0 every term is 0, so derivatives of each order are.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from segops import _lowering
from segops._lowering import batch_size

Array = jax.Array
Params = dict[str, Any]


# --- binding -----------------------------------------------------------------------------------


def bind(primitive: Primitive, *operands: Array, **params: Any) -> Array:
    """Bind a primitive of the family; operands are batched arrays, ids last."""
    return primitive.bind(*_vary_alike(operands), **params)


def _vary_alike(operands: Sequence[Array]) -> list[Array]:
    """Mark operands replicated in ``shard_map`` as varying, so that their cotangents are summed."""
    axes = [_lowering.manual_axes(a) for a in operands]
    union = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(sorted(union - own)), to="varying") if union - own else a
        for a, own in zip(operands, axes, strict=True)
    ]


# --- shapes ------------------------------------------------------------------------------------


def _reduced(width: int | None, *operands: Any, num_segments: int, **_: Any) -> Any:
    shape = (batch_size(*operands), num_segments, width or operands[0].shape[2])
    return _lowering.result_aval(operands, shape, rows=False)


def _spread(*operands: Any, **_: Any) -> Any:
    shape = (batch_size(*operands), operands[-1].shape[1], operands[0].shape[2])
    return _lowering.result_aval(operands, shape, rows=True)


# --- forward mode ------------------------------------------------------------------------------


def _linear_jvp(primitive: Primitive, primals: Any, tangents: Any, **params: Any) -> Any:
    """Return the JVP of a primitive that is linear in each operand: one term for each tangent."""
    terms = [
        bind(primitive, *primals[:k], t, *primals[k + 1 :], **params)
        for k, t in enumerate(tangents[:-1])
        if not isinstance(t, ad.Zero)
    ]
    return bind(primitive, *primals, **params), reduce(ad.add_jaxvals, terms)


def _rms_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (x, idx), (t_x, _) = primals, tangents
    r = bind(rms_p, x, idx, **params)
    u = bind(div_p, x, r, idx, indices_are_sorted=params["indices_are_sorted"])
    return r, bind(dot_p, u, t_x, idx, mean=True, **params)


def _div_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (x, y, idx), (t_x, t_y, _) = primals, tangents
    q = bind(div_p, x, y, idx, **params)
    terms = []
    if not isinstance(t_x, ad.Zero):
        terms.append(bind(div_p, t_x, y, idx, **params))
    if not isinstance(t_y, ad.Zero):
        t_q = bind(mul_p, q, t_y, idx, mean=False, **params)
        terms.append(-bind(div_p, t_q, y, idx, **params))
    return q, reduce(ad.add_jaxvals, terms)


# --- reverse mode ------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: Any, idx: Any, *, num_segments: int, **params: Any) -> Any:
    return [_fit(bind(gather_p, ct, idx, **params), x), None]


def _gather_transpose(ct: Any, y: Any, idx: Any, **params: Any) -> Any:
    return [_fit(bind(sum_p, ct, idx, num_segments=y.aval.shape[1], **params), y), None]


def _dot_transpose(ct: Any, x: Any, y: Any, idx: Any, *, num_segments: int, **params: Any) -> Any:
    if ad.is_undefined_primal(x):
        return [_fit(bind(mul_p, y, ct, idx, **params), x), None, None]
    return [None, _fit(bind(mul_p, x, ct, idx, **params), y), None]


def _mul_transpose(ct: Any, x: Any, y: Any, idx: Any, **params: Any) -> Any:
    if ad.is_undefined_primal(x):
        return [_fit(bind(mul_p, ct, y, idx, **params), x), None, None]
    ct_y = bind(dot_p, x, ct, idx, num_segments=y.aval.shape[1], **params)
    return [None, _fit(ct_y, y), None]


def _outer_transpose(ct: Any, x: Any, y: Any, idx: Any, *, num_segments: int, **params: Any) -> Any:
    if ad.is_undefined_primal(x):
        return [_fit(bind(matvec_p, y, _matrix_transpose(ct), idx, **params), x), None, None]
    return [None, _fit(bind(matvec_p, x, ct, idx, **params), y), None]


def _matvec_transpose(ct: Any, x: Any, y: Any, idx: Any, **params: Any) -> Any:
    if ad.is_undefined_primal(x):
        return [_fit(bind(matvec_p, ct, _matrix_transpose(y), idx, **params), x), None, None]
    ct_y = bind(outer_p, x, ct, idx, num_segments=y.aval.shape[1], **params)
    return [None, _fit(ct_y, y), None]


def _div_transpose(ct: Any, x: Any, y: Any, idx: Any, **params: Any) -> Any:
    return [_fit(bind(div_p, ct, y, idx, **params), x), None, None]


def _fit(ct: Array, operand: Any) -> Array:
    """Bring a cotangent to its operand's type, summed over the batch where that is shared."""
    shared = operand.aval.shape[0] == 1 and ct.shape[0] != 1
    ct = jnp.sum(ct, axis=0, keepdims=True) if shared else ct
    return _lowering.reshard_like(ct, operand.aval)


def _matrix_transpose(rows: Array) -> Array:
    matrices = rows.reshape(*rows.shape[:2], 3, 3)
    return matrices.swapaxes(2, 3).reshape(rows.shape)


# --- batching ----------------------------------------------------------------------------------


def _batch(primitive: Primitive, operands: Any, axes: Any, **params: Any) -> Any:
    """Fold a mapped axis into the batch axis, where an operand that is not mapped stays shared."""
    fronted = [
        a if axis is None else jnp.moveaxis(a, axis, 0)
        for a, axis in zip(operands, axes, strict=True)
    ]
    mapped = [axis is not None for axis in axes]
    size = next(a.shape[0] for a, m in zip(fronted, mapped, strict=True) if m)
    inner = next(
        (n for a, m in zip(fronted, mapped, strict=True) if (n := a.shape[int(m)]) != 1), 1
    )
    folded = [_fold(a, m, size, inner) for a, m in zip(fronted, mapped, strict=True)]
    out = bind(primitive, *folded, **params)
    return out.reshape(size, inner, *out.shape[1:]), 0


def _fold(a: Array, mapped: bool, size: int, inner: int) -> Array:
    rest = a.shape[int(mapped) + 1 :]
    if inner == 1:
        return a.reshape(size, *rest) if mapped else a
    if not mapped and a.shape[0] == 1:
        return a
    a = a if mapped else a[None]
    return jnp.broadcast_to(a, (size, inner, *rest)).reshape(size * inner, *rest)


# --- lowering ----------------------------------------------------------------------------------


def _sum_lowering(x: Array, idx: Array, *, mean: bool, **how: Any) -> Array:
    return _lowering.reduce_rows(f"{'mean' if mean else 'sum'}{x.shape[2]}", x, x, idx, **how)


def _dot_lowering(x: Array, y: Array, idx: Array, *, mean: bool, **how: Any) -> Array:
    return _lowering.reduce_rows("dot_mean" if mean else "dot", x, y, idx, **how)


def _outer_lowering(x: Array, y: Array, idx: Array, **how: Any) -> Array:
    return _lowering.reduce_rows("outer", x, y, idx, **how)


def _rms_lowering(x: Array, idx: Array, **how: Any) -> Array:
    return _lowering.reduce_rows("rms", x, x, idx, **how)


def _gather_lowering(y: Array, idx: Array, *, mean: bool, axes: Any, **_: Any) -> Array:
    y = _shares(y, idx, axes) if mean else y
    return _lowering.broadcast_rows(f"gather{y.shape[2]}", y, y, idx)


def _mul_lowering(x: Array, y: Array, idx: Array, *, mean: bool, axes: Any, **_: Any) -> Array:
    return _lowering.broadcast_rows("mul", x, _shares(y, idx, axes) if mean else y, idx)


def _div_lowering(x: Array, y: Array, idx: Array, **_: Any) -> Array:
    return _lowering.broadcast_rows("div", x, y, idx)


def _matvec_lowering(x: Array, y: Array, idx: Array, **_: Any) -> Array:
    return _lowering.broadcast_rows("matvec", x, y, idx)


def _shares(y: Array, idx: Array, axes: Any) -> Array:
    """Return each segment's value divided by the number of its rows."""
    counts = _lowering.count_rows(idx, y.shape[1], axes)
    return y / jnp.maximum(counts, 1)[:, :, None].astype(y.dtype)


# --- registration ------------------------------------------------------------------------------


def _define(
    name: str, shape: Callable[..., Any], lowering: Callable[..., Array], dims: str
) -> Primitive:
    primitive = Primitive(f"segops_{name}")
    primitive.def_abstract_eval(shape)
    primitive.def_impl(partial(_run, primitive))
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    _lowering.register(primitive, lowering, dims)
    return primitive


def _run(primitive: Primitive, *operands: Array, **params: Any) -> Array:
    return _compiled(primitive, tuple(sorted(params.items())))(*operands)


@cache
def _compiled(primitive: Primitive, params: tuple[tuple[str, Any], ...]) -> Callable[..., Array]:
    return jax.jit(partial(primitive.bind, **dict(params)))


def _define_linear(
    name: str,
    shape: Callable[..., Any],
    lowering: Callable[..., Array],
    dims: str,
    transpose: Callable[..., Any],
) -> Primitive:
    primitive = _define(name, shape, lowering, dims)
    ad.primitive_jvps[primitive] = partial(_linear_jvp, primitive)
    ad.primitive_transposes[primitive] = transpose
    return primitive


sum_p = _define_linear("sum", partial(_reduced, None), _sum_lowering, "nn->s", _sum_transpose)
dot_p = _define_linear("dot", partial(_reduced, 1), _dot_lowering, "nnn->s", _dot_transpose)
outer_p = _define_linear("outer", partial(_reduced, 9), _outer_lowering, "nnn->s", _outer_transpose)
gather_p = _define_linear("gather", _spread, _gather_lowering, "sn->n", _gather_transpose)
mul_p = _define_linear("mul", _spread, _mul_lowering, "nsn->n", _mul_transpose)
matvec_p = _define_linear("matvec", _spread, _matvec_lowering, "nsn->n", _matvec_transpose)

rms_p = _define("rms", partial(_reduced, 1), _rms_lowering, "nn->s")
ad.primitive_jvps[rms_p] = _rms_jvp

div_p = _define("div", _spread, _div_lowering, "nsn->n")
ad.primitive_jvps[div_p] = _div_jvp
ad.primitive_transposes[div_p] = _div_transpose
