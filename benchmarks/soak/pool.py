"""Sound requests, with what must come back."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.service import oracle, problems
from benchmarks.service.connection import JSON, MSGPACK
from benchmarks.service.problems import Problem

MAX_ROWS = 100_000
_JSON_ROWS = 200
_IDS = ("int8", "uint8", "int16", "int32", "int64", "uint32")
_WANTS = (
    *[("value",)] * 4,
    ("vjp",),
    ("value", "vjp"),
    ("jvp",),
    ("hvp",),
    ("value", "vjp", "jvp", "hvp"),
)


@dataclass(slots=True)
class Case:
    """One request. The expectation gives way to a digest once an answer has agreed with it."""

    name: str
    path: str
    body: bytes
    media_type: str
    dtype: str
    rows: int
    expected: Mapping[str, Any] | None
    digest: bytes = b""

    @property
    def is_json(self) -> bool:
        """Whether request and answer are JSON."""
        return self.media_type == JSON

    def fault(self, body: bytes) -> str | None:
        """Return what is wrong with an answer's body, None if it is right.

        The first right answer is within roundings of NumPy's; every later one is the same bytes.
        """
        digest = hashlib.blake2b(body).digest()
        if self.expected is None:
            return None if digest == self.digest else f"{self.name}: not the bytes of before"
        try:
            wrong = problems.difference(self._decode(body), self.expected, self.dtype, self.rows)
        except ValueError as error:
            wrong = f"cannot be read: {error}"
        if wrong:
            return f"{self.name}: {wrong}"
        self.expected, self.digest = None, digest
        return None

    def _decode(self, body: bytes) -> Mapping[str, Any]:
        if self.is_json:
            return problems.from_json(body, self.dtype)
        return problems.unpack(body)


def make(problem: Problem, media_type: str = MSGPACK) -> Case:
    """Pack a problem and compute what it must give."""
    rows = len(problem.idx)
    name = (
        f"{problem.op} {'+'.join(problem.want)} N = {rows}, S = {problem.num_segments}, "
        f"{problem.dtype}, {problem.idx.dtype} ids, {media_type}"
    )
    body = problem.to_json() if media_type == JSON else problem.pack()
    path = f"/v1/{problem.op}"
    return Case(name, path, body, media_type, problem.dtype, rows, problem.expected())


def draw(count: int, seed: int) -> list[Case]:
    """Draw so many cases: ops by turns, sizes log-uniform, all else at random."""
    rng = np.random.default_rng(seed)
    ops = list(oracle.OPERANDS)
    return [_case(rng, ops[turn % len(ops)]) for turn in range(count)]


def _case(rng: np.random.Generator, op: str) -> Case:
    rows = 0 if rng.random() < 0.03 else _log_uniform(rng, MAX_ROWS)
    problem = _problem(rng, op, rows)
    is_json = 0 < rows <= _JSON_ROWS and rng.random() < 0.3
    return make(problem, JSON if is_json else MSGPACK)


def _problem(rng: np.random.Generator, op: str, rows: int) -> Problem:
    segments = _log_uniform(rng, rows + 2)
    want = _WANTS[rng.integers(len(_WANTS))]
    problem = problems.draw(
        op,
        rows,
        segments,
        dtype=str(rng.choice(["float32", "float64"])),
        form=int(rng.integers(len(oracle.OPERANDS[op]))),
        want=want,
        ids=str(rng.choice([name for name in _IDS if np.iinfo(name).max > segments])),
        is_sorted=rng.random() < 0.3,
        seed=int(rng.integers(2**32)),
    )
    return _with_options(rng, problem)


def _with_options(rng: np.random.Generator, problem: Problem) -> Problem:
    """Promise sorted ids, drop some, and leave out what has a default."""
    idx = problem.idx
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        is_dropped = rng.random(len(idx)) < 0.1
        idx = np.where(is_dropped, idx.dtype.type(problem.num_segments), idx)
        options["out_of_range"] = "drop"
    if bool((idx[1:] >= idx[:-1]).all()):
        options["indices_are_sorted"] = True
    cotangent = None if rng.random() < 0.3 else problem.cotangent
    tangents = problem.tangents
    if tangents is not None and rng.random() < 0.3:
        tangents = dict(list(tangents.items())[:1])
    return replace(problem, idx=idx, options=options, cotangent=cotangent, tangents=tangents)


def _log_uniform(rng: np.random.Generator, most: int) -> int:
    return int(np.exp(rng.uniform(0, np.log(most))))
