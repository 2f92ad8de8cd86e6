"""The closed family of primitives and its rules.

Every primitive works on a batch: operands are ``(B, N, W)`` rows, ``(B, S, W)`` segments and, last,
``(B, N)`` ids, where a leading axis of one is shared by the whole batch. Ids out of range drop.
With sums over the rows ``i`` with ``idx[i] == s``, of which there are ``n[s]``::

    sum       out[s] = sum x[i]                    gather    out[i] = y[idx[i]]
    dot       out[s] = sum x[i] . y[i]             mul       out[i] = x[i] y[idx[i]]
    outer     out[s] = sum x[i] (x) y[i]           matvec    out[i] = y[idx[i]]^T x[i]
    unit_dot  out[s] = sum x[i] . y[i] / r[s]      unit_mul  out[i] = x[i] y[idx[i]] / r[idx[i]]
    rms       out[s] = sqrt(sum x[i] . x[i] / n[s])

The left column reduces, the right one broadcasts. Where ``r`` is 0 the unit products are 0. With
``mean`` set a product is also divided by ``n[s]``, which pairs a mean with its adjoint.

``sum`` and ``gather`` are linear and each other's adjoint. Those that take pairs are linear in x
and in y, and accept two pairs, whose products they add in one pass: that is what a product rule
needs. Their transposes bind the family again:

========  ============================  ============================
of        in x                          in y
========  ============================  ============================
dot       mul(y, g)                     mul(x, g)
mul       mul(g, y)                     dot(x, g)
outer     matvec(y, g^T)                matvec(x, g)
matvec    matvec(g, y^T)                outer(x, g)
unit_dot  unit_mul(y, g; r)             unit_mul(x, g; r)
unit_mul  unit_mul(g, y; r)             unit_dot(x, g; r)
========  ============================  ============================

The tangent of ``r = rms(x)`` is ``dr = mean of (x / r) . dx``, a unit_dot. In ``r`` itself,
``d unit_dot = -unit_dot dr / r`` and ``d unit_mul(x, y; r) = unit_mul(x, -y dr / r; r)``, both 0
where ``r`` is 0. So no power of ``r`` beyond the first appears, and derivatives of every order are
0 at a norm of 0.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from segops import _lowering
from segops._sharding import batch_size

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
    (x, idx), (t_x, _) = primals, tangents
    return bind(primitive, x, idx, **params), bind(primitive, t_x, idx, **params)


def _rms_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (x, idx), (t_x, _) = primals, tangents
    r = bind(rms_p, x, idx, **params)
    return r, bind(unit_dot_p, x, t_x, r, idx, mean=True, **params)


def _product_jvp(primitive: Primitive, primals: Any, tangents: Any, **params: Any) -> Any:
    *factors, idx = primals
    pairs, t_pairs = _pairs(factors), _pairs(tangents[:-1])
    out = bind(primitive, *primals, **params)
    return out, _tangent(primitive, pairs, t_pairs, (idx,), params)


def _unit_mul_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    *factors, r, idx = primals
    *t_factors, t_r, _ = tangents
    pairs, t_pairs = _pairs(factors), _pairs(t_factors)
    if not isinstance(t_r, ad.Zero):
        t_pairs = [
            (t_x, _minus(t_y, _quotient(y, t_r, r)))
            for (_, y), (t_x, t_y) in zip(pairs, t_pairs, strict=True)
        ]
    out = bind(unit_mul_p, *primals, **params)
    return out, _tangent(unit_mul_p, pairs, t_pairs, (r, idx), params)


def _unit_dot_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    *factors, r, idx = primals
    *t_factors, t_r, _ = tangents
    out = bind(unit_dot_p, *primals, **params)
    t_out = _tangent(unit_dot_p, _pairs(factors), _pairs(t_factors), (r, idx), params)
    if not isinstance(t_r, ad.Zero):
        t_out = _minus(t_out, _quotient(out, t_r, r))
    return out, t_out


def _pairs(factors: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(factors[::2], factors[1::2], strict=True))


def _tangent(
    primitive: Primitive, pairs: Any, t_pairs: Any, rest: tuple[Array, ...], params: Params
) -> Any:
    """Apply the product rule, two products to a pass."""
    terms = []
    for (x, y), (t_x, t_y) in zip(pairs, t_pairs, strict=True):
        terms += [(t_x, y)] if not isinstance(t_x, ad.Zero) else []
        terms += [(x, t_y)] if not isinstance(t_y, ad.Zero) else []
    passes = [
        bind(primitive, *chain(*terms[k : k + 2]), *rest, **params) for k in range(0, len(terms), 2)
    ]
    return reduce(ad.add_jaxvals, passes) if passes else None


def _quotient(y: Array, t_r: Array, r: Array) -> Array:
    """Return ``y t_r / r``, and 0 where ``r`` is 0, in range wherever the result is.

    Powers of two are taken out of ``y`` and ``r`` first, and put back last. They are constants to
    a derivative, and do not depend on ``t_r``, in which the result must stay linear.
    """
    divisor = jnp.where(r == 0, 1, r)
    e_y, e_r = _exponent(y), _exponent(divisor)
    ratio = _scale(y, -e_y) / _scale(divisor, -e_r)
    return jnp.where(r == 0, 0, _scale(ratio * t_r, e_y - e_r))


def _exponent(a: Array) -> Array:
    return jnp.frexp(jax.lax.stop_gradient(a))[1]


def _scale(a: Array, exponent: Array) -> Array:
    """Multiply by a power of two in two steps, since one alone may be out of range."""
    half = exponent // 2
    one = jnp.ones((), a.dtype)
    return a * jnp.ldexp(one, half) * jnp.ldexp(one, exponent - half)


def _minus(tangent: Any, less: Array) -> Array:
    return -less if tangent is None or isinstance(tangent, ad.Zero) else tangent - less


# --- reverse mode ------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: Any, idx: Any, *, num_segments: int, **params: Any) -> Any:
    return [_fit(bind(gather_p, ct, idx, **params), x), None]


def _gather_transpose(ct: Any, y: Any, idx: Any, **params: Any) -> Any:
    return [_fit(bind(sum_p, ct, idx, num_segments=y.aval.shape[1], **params), y), None]


def _reduction_transpose(
    partner: Primitive, flip: Any, ct: Any, *operands: Any, num_segments: int, **params: Any
) -> Any:
    """Transpose a reducing product: the partner broadcasts the cotangent onto the other factor."""
    factors, rest = _split(operands)
    cts: list[Any] = []
    for x, y in _pairs(factors):
        if ad.is_undefined_primal(x):
            cts += [_fit(bind(partner, y, flip(ct), *rest, **params), x), None]
        elif ad.is_undefined_primal(y):
            cts += [None, _fit(bind(partner, x, ct, *rest, **params), y)]
        else:
            cts += [None, None]
    return [*cts, *[None] * len(rest)]


def _broadcast_transpose(
    itself: Primitive, partner: Primitive, flip: Any, ct: Any, *operands: Any, **params: Any
) -> Any:
    """Transpose a broadcasting product: itself in the rows, its partner in the segments."""
    factors, rest = _split(operands)
    cts: list[Any] = []
    for x, y in _pairs(factors):
        if ad.is_undefined_primal(x):
            cts += [_fit(bind(itself, ct, flip(y), *rest, **params), x), None]
        elif ad.is_undefined_primal(y):
            ct_y = bind(partner, x, ct, *rest, num_segments=y.aval.shape[1], **params)
            cts += [None, _fit(ct_y, y)]
        else:
            cts += [None, None]
    return [*cts, *[None] * len(rest)]


def _split(operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split operands into pairs of factors and the rest: ids alone, or a divisor and ids."""
    rest = 1 if len(operands) % 2 else 2
    return operands[:-rest], operands[-rest:]


def _fit(ct: Array, operand: Any) -> Array:
    """Bring a cotangent to its operand's type, summed over the batch where that is shared."""
    shared = operand.aval.shape[0] == 1 and ct.shape[0] != 1
    ct = jnp.sum(ct, axis=0, keepdims=True) if shared else ct
    return _lowering.reshard_like(ct, operand.aval)


def _same(rows: Array) -> Array:
    return rows


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
    return _lowering.reduce_rows(f"{'mean' if mean else 'sum'}{x.shape[2]}", [x], idx, **how)


def _rms_lowering(x: Array, idx: Array, **how: Any) -> Array:
    return _lowering.reduce_rows("rms", [x], idx, **how)


def _reducing(kind: str, *operands: Array, mean: bool = False, **how: Any) -> Array:
    *rows, idx = operands
    pairs = len(rows) // 2
    return _lowering.reduce_rows(f"{kind}{'_mean' if mean else ''}{pairs}", rows, idx, **how)


def _gather_lowering(y: Array, idx: Array, *, mean: bool, **how: Any) -> Array:
    y = _shares(y, idx, **how) if mean else y
    return _lowering.broadcast_rows(f"gather{y.shape[2]}", [y], idx)


def _broadcasting(kind: str, *operands: Array, mean: bool = False, **how: Any) -> Array:
    *rows, idx = operands
    pairs = len(rows) // 2
    if mean:
        rows[1 : 2 * pairs : 2] = [_shares(y, idx, **how) for y in rows[1 : 2 * pairs : 2]]
    return _lowering.broadcast_rows(f"{kind}{pairs}", rows, idx)


def _shares(y: Array, idx: Array, *, indices_are_sorted: bool, axes: Any, platform: str) -> Array:
    """Return each segment's value divided by the number of its rows."""
    del platform
    counts = _lowering.count_rows(idx, y.shape[1], indices_are_sorted, axes)
    return y / jnp.maximum(counts, 1)[:, :, None].astype(y.dtype)


# --- registration ------------------------------------------------------------------------------


def _define(
    name: str, shape: Callable[..., Any], lowering: Callable[..., Array], dims: str
) -> Primitive:
    primitive = Primitive(f"segops_{name}")
    primitive.def_abstract_eval(shape)
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    _lowering.register(primitive, lowering, dims)
    return primitive


def _differentiate(
    primitive: Primitive, jvp: Callable[..., Any], transpose: Callable[..., Any] | None = None
) -> None:
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = partial(_unless_zero, transpose)


def _unless_zero(transpose: Callable[..., Any], ct: Any, *operands: Any, **params: Any) -> Any:
    if isinstance(ct, ad.Zero):
        return [None] * len(operands)
    return transpose(ct, *operands, **params)


sum_p = _define("sum", partial(_reduced, None), _sum_lowering, "nn->s")
gather_p = _define("gather", _spread, _gather_lowering, "sn->n")
rms_p = _define("rms", partial(_reduced, 1), _rms_lowering, "nn->s")

_differentiate(sum_p, partial(_linear_jvp, sum_p), _sum_transpose)
_differentiate(gather_p, partial(_linear_jvp, gather_p), _gather_transpose)
_differentiate(rms_p, _rms_jvp)

dot_p = _define("dot", partial(_reduced, 1), partial(_reducing, "dot"), "(nn)*n->s")
mul_p = _define("mul", _spread, partial(_broadcasting, "mul"), "(ns)*n->n")

_differentiate(dot_p, partial(_product_jvp, dot_p), partial(_reduction_transpose, mul_p, _same))
_differentiate(
    mul_p, partial(_product_jvp, mul_p), partial(_broadcast_transpose, mul_p, dot_p, _same)
)

outer_p = _define("outer", partial(_reduced, 9), partial(_reducing, "outer"), "(nn)*n->s")
matvec_p = _define("matvec", _spread, partial(_broadcasting, "matvec"), "(ns)*n->n")

_differentiate(
    outer_p,
    partial(_product_jvp, outer_p),
    partial(_reduction_transpose, matvec_p, _matrix_transpose),
)
_differentiate(
    matvec_p,
    partial(_product_jvp, matvec_p),
    partial(_broadcast_transpose, matvec_p, outer_p, _matrix_transpose),
)

unit_dot_p = _define("unit_dot", partial(_reduced, 1), partial(_reducing, "unit_dot"), "(nn)*sn->s")
unit_mul_p = _define("unit_mul", _spread, partial(_broadcasting, "unit_mul"), "(ns)*sn->n")

_differentiate(unit_dot_p, _unit_dot_jvp, partial(_reduction_transpose, unit_mul_p, _same))
_differentiate(
    unit_mul_p, _unit_mul_jvp, partial(_broadcast_transpose, unit_mul_p, unit_dot_p, _same)
)
