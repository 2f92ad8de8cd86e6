"""Whether the harness would see a wrong answer."""

import numpy as np
import pytest

from benchmarks.service import problems
from benchmarks.service.connection import JSON
from benchmarks.soak import hostile, pool
from segops_client import wire


def right(problem):
    """The answer as the service would give it."""

    def narrow(part):
        if isinstance(part, dict):
            return {name: narrow(value) for name, value in part.items()}
        return part.astype(problem.dtype)

    return narrow(problem.expected())


@pytest.fixture
def problem():
    return problems.draw("segmented_rms_norm", 50, 6, want=("value", "vjp"))


def test_a_right_answer_passes_and_so_does_its_repetition(problem):
    case = pool.make(problem)
    body = wire.packb(right(problem))
    assert case.fault(body) is None
    assert case.fault(body) is None


def test_a_changed_bit_of_a_repetition_is_seen(problem):
    case, answer = pool.make(problem), right(problem)
    assert case.fault(wire.packb(answer)) is None
    answer["value"][2] = np.nextafter(answer["value"][2], np.float32(9))
    assert "not the bytes" in case.fault(wire.packb(answer))


@pytest.mark.parametrize("number", [1.0001, np.nan, np.inf])
def test_a_wrong_number_is_seen(problem, number):
    answer = right(problem)
    answer["vjp"]["x"][3, 1] *= number
    answer["vjp"]["x"][3, 1] += np.float32(1e-3)
    assert "vjp.x is off" in pool.make(problem).fault(wire.packb(answer))


def test_the_answer_of_another_request_is_seen(problem):
    other = problems.draw("segmented_rms_norm", 50, 6, want=("value", "vjp"), seed=1)
    assert "is off" in pool.make(problem).fault(wire.packb(right(other)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: answer.pop("vjp"), "and not value, vjp.x"),
        (lambda answer: answer.update(value=answer["value"][:-1]), "has shape"),
        (lambda answer: answer.update(value=answer["value"].astype("f8")), "no float32 array"),
        (lambda answer: answer.update(value=1.0), "no float32 array"),
    ],
)
def test_an_answer_of_another_form_is_seen(problem, change, words):
    answer = right(problem)
    change(answer)
    assert words in pool.make(problem).fault(wire.packb(answer))


def test_an_answer_that_is_no_msgpack_is_seen(problem):
    assert "cannot be read" in pool.make(problem).fault(b"\xc1")


def test_answers_in_json_are_compared_too(problem):
    answer = {"value": right(problem)["value"].tolist()}
    alone = problems.Problem(problem.op, problem.operands, problem.idx, problem.num_segments)
    body = str(answer).replace("'", '"').encode()
    assert pool.make(alone, JSON).fault(body) is None
    answer["value"][0] += 1
    body = str(answer).replace("'", '"').encode()
    assert "value is off" in pool.make(alone, JSON).fault(body)


def test_the_pool_covers_every_op_dtype_want_and_encoding():
    names = " ".join(case.name for case in pool.draw(200, seed=0))
    for part in ("float32", "float64", "jvp", "hvp", "json", "msgpack", "N = 0", "uint8", "mul"):
        assert part in names
    assert len(set(names.split()) & {f"segmented_{op}" for op in ("sum", "mean", "dot")}) == 3


def test_hostile_requests_are_distinct_and_none_may_succeed():
    fixed = hostile.fixed()
    assert (
        len({wrong.name for wrong in fixed})
        == len({wrong.message for wrong in fixed})
        == len(fixed)
    )
    assert not any(status in wrong.statuses for wrong in fixed for status in (200, 500, 503))
