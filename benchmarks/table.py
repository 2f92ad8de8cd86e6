"""The printed form of the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks import libraries, programs

if TYPE_CHECKING:
    from benchmarks.speed import Measurement

REDUCTIONS = ("sum", "mean", "dot", "rms_norm")
_WIDTH = 30


def heading(about: dict[str, str], found: Sequence[libraries.Library]) -> str:
    """Return machine, versions and how to read the tables."""
    lines = [f"{name:>22}: {value}" for name, value in about.items()]
    lines.append(
        "\nTimes in milliseconds: median (minimum); x: median as a multiple of segops' median."
        "\nSum-of-squares loss, derivatives in every operand, float32 vec3 rows."
        "\nhvp: jvp of grad; for nvalchemi, which has no forward mode, grad of <grad, tangent>."
    )
    if len(found) < 3:
        lines.append(libraries.PEER_HINT)
    return "\n".join(lines)


def columns(n: int, order: str, names: Iterable[str]) -> str:
    """Return the head of the table for one size and order."""
    title = f"\nN = {n:,}, S = {max(1, n // 100):,}, {order} ids"
    return title + f"\n{'':18}" + "".join(f"{name:>{_WIDTH}}" for name in names)


def row(measurements: Sequence[Measurement]) -> str:
    """Return one line: the libraries side by side."""
    first = measurements[0]
    return f"{first.op:<10}{first.quantity:<8}" + "".join(
        f"{_cell(m, first):>{_WIDTH}}" for m in measurements
    )


def _cell(measurement: Measurement, ours: Measurement) -> str:
    if not measurement.is_right:
        return f"WRONG, off by {measurement.deviation:.1e}"
    times = f"{_ms(measurement.median_s)} ({_ms(measurement.min_s)})"
    return times if measurement is ours else f"{times} x{ratio(measurement, ours):<5.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:#.3g}".rstrip(".")


def ratio(measurement: Measurement, ours: Measurement) -> float:
    """Return how many times as long as ours a measurement took."""
    return measurement.median_s / ours.median_s


def summary(measurements: Sequence[Measurement]) -> str:
    """Return per quantity the range of the ratios, over all problems and over sorted reductions."""
    ours = {_problem(m): m for m in measurements if m.library == "segops"}
    others = [m for m in measurements if m.library != "segops" and m.is_right]
    reductions = [
        m for m in others if m.op in REDUCTIONS and m.order == "sorted" and m.n >= 1_000_000
    ]
    lines = ["\nTimes as long as segops, smallest to largest:"]
    for title, chosen in (
        ("all problems", others),
        ("sorted reductions of 1e6 rows", reductions),
    ):
        for quantity in programs.QUANTITIES:
            ratios = [ratio(m, ours[_problem(m)]) for m in chosen if m.quantity == quantity]
            if ratios:
                lines.append(f"  {title}, {quantity}: {min(ratios):.2f} to {max(ratios):.2f}")
    return "\n".join(lines)


def _problem(measurement: Measurement) -> tuple[str, str, int, str]:
    return measurement.op, measurement.quantity, measurement.n, measurement.order
