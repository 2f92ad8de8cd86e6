"""Every cell of segops in the table of docs/transforms.md."""

import jax
import pytest

from benchmarks import libraries
from benchmarks.transforms import cells, dense, worker
from benchmarks.transforms.subject import Subject

OURS = libraries.segops()


@pytest.fixture(scope="module", autouse=True)
def float64():
    """The table is measured in float64; other tests may share the process."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("op", libraries.OPS)
@pytest.mark.parametrize("transform", cells.TRANSFORMS)
def test_transform_of_op_is_not_as_documented(transform, op):
    def function(*args):
        return OURS.ops[op](*args, dense.SEGMENTS, is_sorted=False)

    outcomes = worker.try_cell(transform, Subject(op, function), Subject(op, dense.OPS[op]))
    right = "not linear" if (transform, op) == ("linear_transpose", "rms_norm") else "right"
    assert [outcome.kind for outcome in outcomes] == [right, right], outcomes


@pytest.mark.parametrize("op", libraries.OPS)
def test_judge_of_the_table_disagrees_with_central_differences(op):
    worker.check_by_differences(Subject(op, dense.OPS[op]))
