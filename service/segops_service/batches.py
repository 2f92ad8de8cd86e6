"""Batches: the arrays of several calls put into one, and the results taken apart again.

Rows follow each other, and so do segments; the ids of each call are moved by the segments before
it. What is padded belongs to no segment: padded rows have an id beyond every segment, so whatever
they hold, and whatever padded segments hold, takes part in nothing.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from segops_service.calls import Answer, Array, Call, Kind
from segops_service.operations import Layout, count, fill

Arrays = tuple[dict[str, Array], Array, Array | None, dict[str, Array]]

_BEYOND = np.iinfo(np.int32).max
_ALIGNMENT = 64
"""XLA reads arrays on the host where they are if they start at a multiple of this."""


def assemble(calls: Sequence[Call], rows: int, segments: int) -> Arrays:
    """Put the arrays of calls of one kind together, padded to ``rows`` and ``segments``.

    Returns
    -------
    tuple
        Operands by name, ids (int32), cotangent or None, and tangents by name.
    """
    kind = calls[0].kind
    form = kind.form

    def joined(arrays: list[Array], layout: Layout) -> Array:
        return _joined(arrays, fill(layout, rows, segments))

    operands = {
        name: joined([call.operands[name] for call in calls], layout)
        for name, layout in form.operands.items()
    }
    tangents = {
        name: joined([call.tangents[name] for call in calls], form.operands[name])
        for name in kind.tangents
    }
    cotangents = [call.cotangent for call in calls if call.cotangent is not None]
    cotangent = joined(cotangents, form.value) if cotangents else None
    return operands, _joined_ids(calls, rows), cotangent, tangents


def split(answer: Answer, calls: Sequence[Call]) -> list[Answer]:
    """Take apart what :func:`assemble` put together; the parts are views."""
    kind = calls[0].kind
    places = {
        "N": _places([call.rows for call in calls]),
        "S": _places([call.num_segments for call in calls]),
    }

    def parts(layout: Layout, result: Array) -> list[Array]:
        return [result[place] for place in places[str(layout[0])]]

    answers: list[Answer] = [{} for _ in calls]
    for want in kind.want:
        result = answer[want]
        if isinstance(result, dict):
            for one in answers:
                one[want] = {}
            for name, layout in kind.form.operands.items():
                for one, part in zip(answers, parts(layout, result[name]), strict=True):
                    one[want][name] = part
        else:
            for one, part in zip(answers, parts(kind.form.value, result), strict=True):
                one[want] = part
    return answers


def device_bytes(kind: Kind, rows: int, segments: int) -> int:
    """Bytes on the device of everything that goes in and comes out."""
    form, operands = kind.form, kind.form.operands
    inside = [*operands.values(), *(operands[name] for name in kind.tangents)]
    inside += [form.value] * kind.has_cotangent
    results = {"value": [form.value], "jvp": [form.value]}
    outside = [layout for want in kind.want for layout in results.get(want, operands.values())]
    numbers = sum(count(layout, rows, segments) for layout in (*inside, *outside))
    return numbers * np.dtype(kind.dtype).itemsize + rows * np.dtype(np.int32).itemsize


def _joined(arrays: list[Array], shape: tuple[int, ...]) -> Array:
    if len(arrays) == 1 and arrays[0].shape == shape:
        return arrays[0]
    out = _aligned(shape, arrays[0].dtype)
    np.concatenate(arrays, out=out[: sum(map(len, arrays))])
    return out


def _joined_ids(calls: Sequence[Call], rows: int) -> Array:
    out = _aligned((rows,), np.dtype(np.int32))
    if all(call.ids_in_range for call in calls):
        return _joined_sound_ids(calls, out)
    start = offset = 0
    for call in calls:
        place = out[start : start + call.rows]
        _move_ids(call, offset, place)
        start += call.rows
        offset += call.num_segments
    out[start:] = _BEYOND
    return out


def _joined_sound_ids(calls: Sequence[Call], out: Array) -> Array:
    """Do the same without a look at any id: that of most calls, and quicker."""
    counts = [call.rows for call in calls]
    end = sum(counts)
    np.concatenate([call.idx for call in calls], out=out[:end], casting="unsafe")
    if len(calls) > 1:
        offsets = accumulate([0, *(call.num_segments for call in calls[:-1])])
        out[:end] += np.repeat(np.fromiter(offsets, np.int32, len(calls)), counts)
    out[end:] = _BEYOND
    return out


def _move_ids(call: Call, offset: int, out: Array) -> None:
    """Write the ids moved by ``offset``; those out of range go to where no segment is."""
    if call.ids_in_range:
        np.copyto(out, call.idx, casting="unsafe")
        out += np.int32(offset)
        return
    inside = (call.idx >= 0) & (call.idx < call.num_segments)
    out[:] = _BEYOND
    out[call.idx < 0] = -1  # so that ascending ids still ascend
    np.copyto(out, call.idx, where=inside, casting="unsafe")
    np.add(out, np.int32(offset), out=out, where=inside)


def _places(sizes: list[int]) -> list[slice]:
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
