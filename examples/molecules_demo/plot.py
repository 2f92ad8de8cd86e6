"""The plot: sizes and shapes of the molecules, and how well they were computed."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")  # a file, on machines without a display too

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .batch import Batch, Floats
from .check import Run
from .quantities import Quantities

COLORS = {"float32": "tab:orange", "float64": "tab:blue"}
LABELLED = {
    # name: (text, offset in points, alignment)
    "H2": ("H$_2$", (6, -3), "left"),
    "Cl2": ("Cl$_2$", (0, 6), "center"),
    "CH4": ("CH$_4$", (6, -9), "left"),
    "NCCN": ("NCCN", (-6, 3), "right"),
    "C2Cl4": ("C$_2$Cl$_4$", (0, 6), "center"),
    "CCl4": ("CCl$_4$", (-7, 2), "right"),
    "C6H6": ("C$_6$H$_6$", (0, 6), "center"),
    "2-butyne": ("2-butyne", (0, 6), "center"),
    "trans-butane": ("trans-butane", (-6, 6), "center"),
    "isobutane": ("isobutane", (0, -14), "center"),
}
EXACT = 1e-18
"""Where deviations of exactly 0 are drawn on the logarithmic axis."""


def save_plot(batch: Batch, runs: list[Run], path: Path) -> None:
    """Draw the sizes of the molecules beside the deviations of all runs."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 5.5), layout="constrained", width_ratios=(1.15, 1)
    )
    _draw_sizes(left, batch, runs[-1].quantities)
    _draw_deviations(right, runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_sizes(axes: Axes, batch: Batch, found: Quantities) -> None:
    many = batch.sizes > 1
    drawn = axes.scatter(
        batch.sizes[many],
        found.radius_of_gyration[many],
        c=shape_anisotropy(found.principal_moments[many]),
        s=38,
        cmap="viridis",
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidths=0.5,
        zorder=2,
    )
    for name, (text, offset, alignment) in LABELLED.items():
        index = batch.names.index(name)
        axes.annotate(
            text,
            (batch.sizes[index], found.radius_of_gyration[index]),
            offset,
            textcoords="offset points",
            ha=alignment,
            fontsize=9,
        )
    axes.set(
        title=f"Size and shape of the {many.sum()} molecules with more than one atom",
        xlabel="number of atoms",
        ylabel="radius of gyration, weighted by mass (Å)",
        xticks=range(2, batch.sizes.max() + 1),
        xlim=(1.4, batch.sizes.max() + 1),
        ylim=(0, 2.2),
    )
    axes.grid(alpha=0.3)
    bar = axes.figure.colorbar(drawn, ax=axes, label="relative shape anisotropy")
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0 (ball)", "¼ (disc)", "½", "¾", "1 (rod)"])


def shape_anisotropy(principal_moments: Floats) -> Floats:
    """Return 0 for a ball, 1/4 for a flat ring and 1 for a rod.

    It is 1 - 3 (ab + bc + ca) / (a + b + c)², with the spreads a, b, c along the principal axes.
    """
    spreads = principal_moments.sum(axis=1, keepdims=True) / 2 - principal_moments
    shifted = np.roll(spreads, 1, axis=1)
    anisotropy: Floats = 1 - 3 * (spreads * shifted).sum(axis=1) / spreads.sum(axis=1) ** 2
    return anisotropy


def _draw_deviations(axes: Axes, runs: list[Run]) -> None:
    names = list(runs[0].deviations)
    for lane, run in zip((-0.17, 0.17), runs, strict=True):
        _draw_run(axes, run, lane)
    axes.set(
        title="Deviation of each molecule from ase and NumPy",
        xlabel="relative deviation (dashed: the largest that passes)",
        xscale="log",
        xlim=(EXACT / 3, 1e-5),
        ylim=(len(names) - 0.4, -1.1),  # downwards, with room for the legend
        yticks=range(len(names)),
        yticklabels=[name.replace("_", " ") for name in names],
    )
    powers = range(-16, -4, 2)
    axes.set_xticks(
        [EXACT, *(10.0**power for power in powers)],
        labels=["exact", *(f"$10^{{{power}}}$" for power in powers)],
    )
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper center", ncols=len(runs), markerscale=3, framealpha=1)


def _draw_run(axes: Axes, run: Run, lane: float) -> None:
    color = COLORS[run.dtype]
    found = np.stack(list(run.deviations.values()))
    # A spread across the row parts points that would hide one another.
    spread = np.random.default_rng(0).uniform(-0.14, 0.14, found.shape)
    heights = np.arange(len(found))[:, None] + lane + spread
    drawn = np.maximum(found, EXACT).ravel()
    axes.plot(drawn, heights.ravel(), ".", color=color, alpha=0.35, ms=4, label=run.dtype)
    axes.axvline(run.bound, color=color, ls="--", lw=1.5)
