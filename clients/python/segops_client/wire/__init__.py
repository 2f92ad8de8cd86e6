"""The array encoding that both ends of the service speak: one strict, bounded msgpack map.

A message is made of maps with string keys, lists, strings, numbers, booleans, nil, binaries and
arrays. An array is a map in the layout of ``msgpack_numpy``, so an unpatched ``msgpack_numpy``
peer interoperates in both directions::

    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [4, 3], b"data": <C order, little-endian>}

`packb` writes exactly that layout for an array of any memory order; `pack_parts` gives the same
message in parts that share the memory of large arrays. `unpackb` accepts the keys as bytes or
strings and trusts nothing else: the element type is looked up in `DTYPES`, never built from what
was sent; no pickle is ever loaded; the sizes that a message claims are checked against `Limits`,
and against the bytes that are there, before anything is allocated. Every fault is a `WireError`
that names the field. A NumPy scalar (``nd`` false, no shape) decodes to an array of shape ``()``.

Decoded arrays are read-only views of the body that was passed in, which they keep alive. Their
data starts wherever the message put it, so a view may be unaligned (``array.flags.aligned`` is
False). NumPy computes with such views correctly; ``numpy.require(array, requirements="A")`` makes
an aligned copy where a consumer of the raw pointer needs one. Big-endian data is byte-swapped into
a fresh little-endian array.
"""

from segops_client.wire._decode import unpackb
from segops_client.wire._encode import pack_parts, packb
from segops_client.wire._format import DTYPES, MEDIA_TYPE, MEDIA_TYPES, Limits, WireError

__all__ = [
    "DTYPES",
    "MEDIA_TYPE",
    "MEDIA_TYPES",
    "Limits",
    "WireError",
    "pack_parts",
    "packb",
    "unpackb",
]
