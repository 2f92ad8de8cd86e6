"""The oracle of the service's benchmarks beside the loops that the service's tests trust."""

import numpy as np
import pytest

from benchmarks.service import oracle, problems
from tests.service.helpers import WANTS, Case, leaves
from tests.service.helpers import oracle as loops

FORMS = [(op, form) for op, forms in oracle.OPERANDS.items() for form in range(len(forms))]


@pytest.mark.parametrize(("op", "form"), FORMS)
@pytest.mark.parametrize(("rows", "segments"), [(40, 7), (0, 3), (5, 0), (6, 20)])
def test_formulas_agree_with_loops_over_the_rows(op, form, rows, segments):
    problem = problems.draw(op, rows, segments, form=form, want=WANTS, dtype="float64")
    idx = problem.idx.copy()
    idx[::5], idx[1::5] = segments, -1
    arguments = (problem.operands, idx, segments, problem.tangents, problem.cotangent)
    found = oracle.evaluate(op, *arguments)
    right = loops(Case(op, problem.operands, idx, segments, problem.cotangent, problem.tangents))
    for (path, a), (other, b) in zip(leaves(found), leaves(right), strict=True):
        assert path == other
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13, err_msg=path)


def test_what_is_not_sent_counts_as_ones_and_zeros():
    sent = problems.draw("segmented_mul", 9, 4, want=WANTS)
    ones, zeros = np.ones((9, 3)), {"y": np.zeros(4, np.float32)}
    short = problems.Problem(
        sent.op, sent.operands, sent.idx, 4, WANTS, None, {"x": sent.tangents["x"]}
    )
    full = problems.Problem(
        sent.op, sent.operands, sent.idx, 4, WANTS, ones, {"x": sent.tangents["x"], **zeros}
    )
    for (path, a), (_, b) in zip(leaves(short.expected()), leaves(full.expected()), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=path)
