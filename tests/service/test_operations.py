"""The table of operations says what the library does."""

import inspect

import jax
import numpy as np
import pytest

import segops
from segops_service.operations import OPERATIONS, fill, spell

FORMS = [(op, form) for op, operation in OPERATIONS.items() for form in operation.forms]


@pytest.mark.parametrize("op", OPERATIONS)
def test_operands_are_named_and_ordered_as_in_the_library(op: str) -> None:
    parameters = list(inspect.signature(getattr(segops, op)).parameters)
    operands = OPERATIONS[op].operands
    assert parameters == [*operands, "idx", "num_segments", "indices_are_sorted"]


def test_every_operation_of_the_library_is_served() -> None:
    assert set(OPERATIONS) == {name for name in segops.__all__ if name.startswith("segmented_")}


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_the_value_has_the_shape_that_the_library_gives(op, form) -> None:  # type: ignore[no-untyped-def]
    arrays = {
        name: jax.ShapeDtypeStruct(fill(layout, 5, 4), np.float32)
        for name, layout in form.operands.items()
    }
    idx = jax.ShapeDtypeStruct((5,), np.int32)
    value = jax.eval_shape(
        lambda idx, **arrays: getattr(segops, op)(**arrays, idx=idx, num_segments=4), idx, **arrays
    )
    assert value.shape == fill(form.value, 5, 4)


def test_layouts_are_spelled_as_python_spells_shapes() -> None:
    assert [spell(layout) for layout in (("N",), ("N", 3), ("S", 3, 3))] == [
        "(N,)",
        "(N, 3)",
        "(S, 3, 3)",
    ]


def test_a_form_is_found_by_the_axes_of_the_first_operand() -> None:
    scalar, vector = OPERATIONS["segmented_sum"].forms
    assert OPERATIONS["segmented_sum"].form(1) is scalar
    assert OPERATIONS["segmented_sum"].form(2) is vector
    assert OPERATIONS["segmented_sum"].form(0) is None
