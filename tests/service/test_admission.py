"""Admission: what is under way is counted, bounded, and given back whatever happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segops_service.admission import Admission
from segops_service.errors import OverloadedError


def _counts(admission: Admission) -> tuple[int, int, int]:
    return admission.requests, admission.bytes, admission.arriving


def test_a_slot_counts_from_its_beginning_to_its_end() -> None:
    admission = Admission(2, 100)
    with admission.enter(30) as one:
        assert _counts(admission) == (1, 30, 1)
        with admission.enter(70) as two:
            assert _counts(admission) == (2, 100, 2)
            two.arrived()
            two.arrived()
            assert _counts(admission) == (2, 100, 1)
        assert _counts(admission) == (1, 30, 1)
        one.arrived()
        assert _counts(admission) == (1, 30, 0)
    assert _counts(admission) == (0, 0, 0)


def test_one_request_too_many_is_refused_and_takes_nothing() -> None:
    admission = Admission(1, 100)
    with admission.enter(10):
        with pytest.raises(OverloadedError, match="1 request") as caught:
            admission.enter(10)
        assert _counts(admission) == (1, 10, 1)
    assert caught.value.retry_after >= 1
    assert admission.refused == 1
    with admission.enter(10):
        pass


def test_a_body_too_many_is_refused_and_takes_nothing() -> None:
    admission = Admission(9, 100)
    with admission.enter(60):
        with pytest.raises(OverloadedError, match="100 bytes") as caught:
            admission.enter(41)
        assert _counts(admission) == (1, 60, 1)
        with admission.enter(40):
            assert admission.bytes == 100
    assert caught.value.retry_after >= 1
    assert (_counts(admission), admission.refused) == ((0, 0, 0), 1)


def test_a_body_of_unknown_length_is_charged_as_it_grows() -> None:
    admission = Admission(9, 100)
    with admission.enter(0) as slot:
        for total in (10, 60, 60, 100):
            slot.charge(total)
            assert admission.bytes == total
        with pytest.raises(OverloadedError):
            slot.charge(101)
        assert admission.bytes == 100
    assert _counts(admission) == (0, 0, 0)


def test_a_declared_body_is_not_charged_twice() -> None:
    admission = Admission(9, 100)
    with admission.enter(80) as slot:
        slot.charge(40)
        slot.charge(80)
        assert admission.bytes == 80


def test_an_error_inside_gives_the_room_back() -> None:
    admission = Admission(9, 100)

    def fail() -> None:
        with admission.enter(80) as slot:
            slot.charge(90)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert _counts(admission) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans()), max_size=20))
def test_no_order_of_events_leaves_anything_behind(
    requests: list[tuple[int, int, bool]],
) -> None:
    admission = Admission(3, 100)
    under_way = []
    for declared, grown, ends in requests:
        try:
            slot = admission.enter(declared)
        except OverloadedError:
            continue
        under_way.append(slot)
        try:
            slot.charge(grown)
        except OverloadedError:
            slot.__exit__(None, None, None)
            under_way.remove(slot)
        assert 0 <= admission.bytes <= 100
        assert admission.requests == admission.arriving == len(under_way) <= 3
        if ends and under_way:
            under_way.pop(0).__exit__(None, None, None)
    for slot in under_way:
        slot.__exit__(None, None, None)
    assert _counts(admission) == (0, 0, 0)
