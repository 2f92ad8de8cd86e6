"""Buckets: the sizes that functions are compiled for, so that a few serve requests of any size.

Rows are rounded up to a geometric series. Segments are rounded up to a quarter of the rows so
rounded, times a power of two: requests with at least four rows a segment, which most are, need one
function for each size of rows, and segments never add more than that quarter of the rows or double.
"""

from bisect import bisect_left
from collections.abc import Iterator

_FLOOR = 10_240
"""Padding to this many rows costs less than the launch itself, so nothing smaller is told apart."""

_STEP = 64
_MOST = 2**31 - 1
_ROW_WIDTH = 3
_SEGMENT_WIDTH = 9


class Buckets:
    """Rounds sizes up.

    Parameters
    ----------
    ratio
        Ratio of neighbouring sizes of rows.
    is_exact
        Leave segments as they are.
    """

    def __init__(self, ratio: float = 1.25, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        self._levels = _levels(ratio)

    def rows(self, rows: int) -> int:
        """Round a number of rows up, not beyond what an array may hold."""
        level = self._levels[bisect_left(self._levels, rows)]
        return max(rows, min(level, _MOST // _ROW_WIDTH))

    def segments(self, segments: int, rows: int) -> int:
        """Round a number of segments up, given the rounded rows beside them."""
        if self.is_exact:
            return segments
        unit = -(-rows // 4)
        doublings = max(-(-segments // unit) - 1, 0).bit_length()
        return max(segments, min(unit << doublings, _MOST // _SEGMENT_WIDTH))

    def up_to(self, rows: int, segments: int) -> Iterator[tuple[int, int]]:
        """Yield all pairs that up to ``rows`` rows with up to ``segments`` are rounded to."""
        for level in self._levels[: bisect_left(self._levels, rows) + 1]:
            rounded = self.rows(min(level, rows))
            most = self.segments(segments, rounded)
            size = most if self.is_exact else self.segments(0, rounded)
            while size < most:
                yield rounded, size
                size = self.segments(min(2 * size, segments), rounded)
            yield rounded, most


def _levels(ratio: float) -> list[int]:
    levels = [_FLOOR]
    while levels[-1] <= _MOST:
        grown = int(levels[-1] * ratio)
        levels.append(max(grown // _STEP * _STEP, levels[-1] + _STEP))
    return levels
