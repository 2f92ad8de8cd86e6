"""Tallies: histograms that cost next to nothing to add to, since one thread alone does so."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric


class Tally:
    """Counts of values by size, and their sum.

    Parameters
    ----------
    bounds
        Upper bounds of all buckets but the last, which has none.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def put_into(self, family: HistogramMetricFamily, labels: Iterable[str]) -> None:
        """Add these counts to a family of histograms."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric([*labels], buckets=buckets, sum_value=self._sum)


def histogram(name: str, text: str, tallies: Mapping[str, Tally], label: str = "") -> Metric:
    """Give tallies by the value of a label, or one alone, as a metric."""
    family = HistogramMetricFamily(name, text, labels=[label] if label else [])
    for value, tally in tallies.items():
        tally.put_into(family, [value] if label else [])
    return family
