"""Requests that must be refused, each with the statuses that are right for it."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack  # type: ignore[import-untyped]
import numpy as np

from benchmarks.service import problems
from benchmarks.service.connection import JSON, MSGPACK, request
from benchmarks.service.problems import Problem
from segops_client import wire

CLOSED = 0
"""Stands for an end without an answer, which a reset makes of one where much was left unread."""

OP = "segmented_sum"
_PATH = f"/v1/{OP}"
_GIB = 2**30


@dataclass(frozen=True)
class Hostile:
    """One request, in the bytes that are sent, and how it may be answered.

    Where they are not ``whole``, the server still waits for more of them behind its answer.
    """

    name: str
    message: bytes
    statuses: frozenset[int]
    whole: bool = True


def fixed() -> list[Hostile]:
    """Return the requests that are the same every time."""
    return [
        *(_hostile(f"fields: {name}", wire.packb(fields), 422) for name, fields in _fields()),
        *(_hostile(f"msgpack: {name}", body, 400, 422) for name, body in _packed()),
        *(
            _hostile(f"JSON: {name}", body, 400, 422, media_type=JSON)
            for name, body in _json_bodies()
        ),
        *_requests(),
        *_no_http(),
    ]


def random(rng: np.random.Generator, sound: bytes) -> Hostile:
    """Draw a body of noise, or a sound one that is cut off."""
    if rng.random() < 0.5:
        return _hostile("noise", rng.bytes(int(rng.integers(1, 2000))), 400, 422)
    return _hostile("cut off", sound[: int(rng.integers(len(sound)))], 400, 422)


def _hostile(name: str, body: bytes, *statuses: int, media_type: str = MSGPACK) -> Hostile:
    return Hostile(name, request(_PATH, body, media_type), frozenset(statuses))


def _sound(**changes: object) -> dict[str, object]:
    fields = problems.draw(OP, 8, 3).fields | changes
    return {name: value for name, value in fields.items() if value is not None}


def _fields() -> Sequence[tuple[str, dict[str, object]]]:
    numbers = np.zeros((8, 3), np.float32)
    return [
        ("rows of four", _sound(x=np.zeros((8, 4), np.float32))),
        ("another number of rows", _sound(x=numbers[:5])),
        ("scalar operand", _sound(x=np.float32(1))),
        ("integer operand", _sound(x=numbers.astype(np.int32))),
        ("ids in two columns", _sound(idx=np.zeros((8, 3), np.int32))),
        ("float ids", _sound(idx=np.zeros(8, np.float32))),
        ("negative id", _sound(idx=np.full(8, -1))),
        ("id that wraps in 32 bits", _sound(idx=np.full(8, 2**32))),
        ("no ids", _sound(idx=None)),
        ("unknown field", _sound(z=1)),
        ("unknown want", _sound(want=["grad"])),
        ("jvp without tangents", _sound(want=["jvp"])),
        ("unknown operand in tangents", _sound(want=["jvp"], tangents={"q": numbers})),
        ("falsely promised order", _sound(idx=np.arange(8)[::-1] % 3, indices_are_sorted=True)),
        *((f"num_segments {n!r}", _sound(num_segments=n)) for n in (-1, 2**31, 2**40, True, "5")),
        ("num_segments 2^31 - 1", _sound(num_segments=2**31 - 1)),
    ]


def _packed() -> Sequence[tuple[str, bytes]]:
    def array(**changes: object) -> bytes:
        fields = {"nd": True, "type": "<f4", "kind": "", "shape": [2, 3], "data": bytes(24)}
        body: bytes = msgpack.packb(_plain() | {"x": fields | changes})
        return body

    return [
        ("nothing", b""),
        ("a list", b"\x91\x01"),
        ("a pickle", array(type="|O", kind="O", shape=[1], data=pickle.dumps([1]))),
        ("pointers", array(type="|O", shape=[1], data=b"A" * 8)),
        ("no bytes an element", array(type="|V0", shape=[2**40], data=b"")),
        ("a length to be inferred", array(shape=[-1])),
        ("more shape than data", array(shape=[2**30, 2**30])),
        ("an announced list of 2^32", b"\xdd\xff\xff\xff\xff"),
        ("nested announcements", b"\x9f\xfdt\xf7\xddt\xff\xfd\xbd"),
        ("a million maps", b"\xdd\x00\x10\x00\x00" + b"\x80" * 2**20),
        ("deep lists", b"\x91" * 100_000),
    ]


def _plain() -> dict[str, object]:
    ids = {"nd": True, "type": "<i4", "kind": "", "shape": [2], "data": bytes(8)}
    return {"idx": ids, "num_segments": 1}


def _json_bodies() -> Sequence[tuple[str, bytes]]:
    return [
        ("half a map", b'{"x": [1,'),
        ("deep lists", b"[" * 100_000),
        ("NaN", b'{"x": [NaN], "idx": [0], "num_segments": 1}'),
        ("null in a list", b'{"x": [null], "idx": [0], "num_segments": 1}'),
        ("a huge id", b'{"x": [1], "idx": [1e400], "num_segments": 1}'),
        ("ragged rows", b'{"x": [[1, 2, 3], [1]], "idx": [0, 0], "num_segments": 1}'),
        ("a number over float32", b'{"x": [1e300], "idx": [0], "num_segments": 1}'),
    ]


def _requests() -> Sequence[Hostile]:
    sound = problems.draw(OP, 8, 3)
    body = sound.pack()

    def hostile(name: str, message: bytes, *statuses: int) -> Hostile:
        return Hostile(f"request: {name}", message, frozenset(statuses))

    return [
        hostile("unknown op", request("/v1/segmented_max", body), 404),
        hostile("unknown path", request("/v3/x", body), 404),
        hostile("GET", request(_PATH, method="GET"), 405),
        hostile("text", request(_PATH, body, "text/plain"), 415),
        hostile("gzip", request(_PATH, body, content_encoding="gzip"), 415),
        hostile("an image wanted", request(_PATH, body, accept="image/png"), 406),
        hostile("no number for a time limit", request(_PATH, body, x_request_timeout="soon"), 422),
        hostile("NaN as JSON", request(_PATH, _nan(sound).pack(), accept=JSON), 422),
        Hostile("request: 10 GiB announced", _announcing(10 * _GIB), frozenset({413}), whole=False),
    ]


def _announcing(length: int) -> bytes:
    """Return a request that says it has a body of so many bytes, and begins it."""
    return request(_PATH, b"\x84").replace(b"content-length: 1\r", b"content-length: %d\r" % length)


def _nan(problem: Problem) -> Problem:
    return replace(problem, operands={"x": problem.operands["x"] * np.float32(np.nan)})


def _no_http() -> Sequence[Hostile]:
    def hostile(name: str, message: bytes, *statuses: int) -> Hostile:
        return Hostile(f"no HTTP: {name}", message, frozenset(statuses))

    chunked = request(_PATH, b"zz\r\n").replace(b"content-length: 4", b"transfer-encoding: chunked")
    return [
        hostile("noise", b"\x16\x03\x01\x02\x00\x01\x00" * 20 + b"\r\n\r\n", 400),
        hostile("another version", b"GET / HTTP/9.9\r\n\r\n", 400),
        hostile("no length of a chunk", chunked, 400),
        hostile(
            "a length that is no number",
            request(_PATH, b"x").replace(b"content-length: 1", b"content-length: one"),
            400,
        ),
        hostile("a head of 1 MiB", request(_PATH, x_filler="a" * 2**20), 400, 431, CLOSED),
    ]
