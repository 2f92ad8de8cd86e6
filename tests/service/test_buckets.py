"""Buckets: few sizes, little padding, and never more than the library can hold."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segops_service import Settings
from segops_service.buckets import Buckets

LARGEST = 2**31 - 1
FLOOR = Buckets().rows(0)
DEFAULT = Settings().bucket_ratio

ratios = st.floats(1.05, 4)
rows = st.integers(0, LARGEST // 3)
segments = st.integers(0, LARGEST)


@given(ratios, rows)
@example(1.05, FLOOR + 1)
@example(4.0, LARGEST // 3)
def test_rows_are_padded_by_no_more_than_the_ratio_above_the_floor(ratio: float, n: int) -> None:
    rounded = Buckets(ratio).rows(n)
    assert n <= rounded <= max(FLOOR, n * ratio)


@given(ratios, rows, segments)
def test_segments_add_no_more_than_a_quarter_of_the_rows_or_double(
    ratio: float, n: int, s: int
) -> None:
    buckets = Buckets(ratio)
    rounded_rows = buckets.rows(n)
    assert s <= buckets.segments(s, rounded_rows) <= max(-(-rounded_rows // 4), 2 * s)


@given(ratios, st.tuples(rows, rows), st.tuples(segments, segments))
def test_a_larger_request_never_has_a_smaller_bucket(
    ratio: float, n: tuple[int, int], s: tuple[int, int]
) -> None:
    buckets = Buckets(ratio)
    low, high = (buckets.rows(count) for count in sorted(n))
    assert low <= high
    assert buckets.segments(min(s), high) <= buckets.segments(max(s), high)


@given(ratios, rows, segments)
@example(DEFAULT, LARGEST // 3, LARGEST // 9)
@example(DEFAULT, LARGEST // 3, LARGEST)
@example(DEFAULT, 0, LARGEST // 9)
def test_no_bucket_is_beyond_what_an_array_of_the_library_may_hold(
    ratio: float, n: int, s: int
) -> None:
    buckets = Buckets(ratio)
    rounded = buckets.rows(n)
    assert rounded * 3 <= LARGEST
    assert buckets.segments(s, rounded) <= max(s, LARGEST // 9)


@given(ratios, rows, segments)
def test_what_was_rounded_stays_as_it_is(ratio: float, n: int, s: int) -> None:
    buckets = Buckets(ratio)
    rounded = buckets.rows(n)
    assert buckets.rows(rounded) == rounded
    rounded_segments = buckets.segments(s, rounded)
    assert buckets.segments(rounded_segments, rounded) == rounded_segments


def test_a_hundred_thousand_rows_and_segments_need_few_functions() -> None:
    buckets = Buckets(DEFAULT)
    sizes = range(0, 100_001, 50)  # the narrowest bucket is far wider
    levels = {buckets.rows(n) for n in sizes}
    pairs = {(level, buckets.segments(s, level)) for level in levels for s in sizes}
    assert len(pairs) <= 64


@given(rows, segments)
def test_exact_buckets_leave_segments_as_they_are(n: int, s: int) -> None:
    exact = Buckets(is_exact=True)
    assert exact.segments(s, exact.rows(n)) == s
    assert exact.rows(n) == Buckets().rows(n)


@given(ratios, st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
@example(DEFAULT, 0, 0, 0.0, 0.0)
@example(DEFAULT, 10**6, 10**6, 1.0, 1.0)
def test_the_sizes_up_to_one_are_those_of_all_smaller_requests(
    ratio: float, most_n: int, most_s: int, part_n: float, part_s: float
) -> None:
    buckets = Buckets(ratio)
    sizes = [*buckets.up_to(most_n, most_s)]
    assert len({*sizes}) == len(sizes)
    rounded = buckets.rows(int(part_n * most_n))
    assert (rounded, buckets.segments(int(part_s * most_s), rounded)) in sizes
    largest = buckets.rows(most_n)
    assert sizes[-1] == (largest, buckets.segments(most_s, largest))


def test_the_largest_sizes_of_all_end() -> None:
    assert [*Buckets().up_to(LARGEST // 3, LARGEST)][-1] == (LARGEST // 3, LARGEST)


def test_exact_sizes_have_one_number_of_segments() -> None:
    sizes = [*Buckets(is_exact=True).up_to(30_000, 17)]
    assert {s for _, s in sizes} == {17}
    assert Buckets().rows(30_000) in {n for n, _ in sizes}


def test_a_ratio_that_makes_no_difference_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket_ratio"):
        Settings(bucket_ratio=1 + 1e-9)
