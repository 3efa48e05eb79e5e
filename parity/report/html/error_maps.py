"""Pictures of a fault: its error along each axis, the worst image, how large its entries are."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from parity.core.error_map import EDGES, Along, ErrorMap
from parity.report.html.svg import INKS, drawn, powers_of_ten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "viridis"
"""Readable on light and on dark, and without colour vision."""


def pictures(error_map: ErrorMap, name: str) -> str:
    """One `<svg>` with all of them; its ids begin with `name`."""
    return drawn(name, 11, 4.2, lambda figure: _draw(figure, error_map))


def _draw(figure: "Figure", error_map: ErrorMap) -> None:
    long = [along for along in error_map.along if along.size > 1] or list(error_map.along)
    sides = figure.add_gridspec(
        1, 2, width_ratios=(1, 1.7), left=0.04, right=0.985, top=0.93, bottom=0.12, wspace=0.24
    )
    right = sides[1].subgridspec(2, 1, height_ratios=(1, 1.15), hspace=0.5)
    upper = right[0].subgridspec(1, len(long), wspace=0.42)
    _heat(figure, figure.add_subplot(sides[0]), error_map)
    for at, along in enumerate(long):
        _along(figure.add_subplot(upper[at]), along)
    _histogram(figure.add_subplot(right[1]), error_map.counts)


def _along(axes: "Axes", along: Along) -> None:
    edges = np.linspace(0, along.size, len(along.errors) + 1) - 0.5
    heights = [error if math.isfinite(error) else math.nan for error in along.errors]
    axes.stairs(heights, edges, fill=True, color=INKS["exclusive"])
    axes.set_xlim(-0.5, along.size - 0.5)
    axes.set_ylim(bottom=0)
    axes.set_title(f"by {along.axis}")
    axes.locator_params(axis="x", integer=True, nbins=5)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(axis="y")


def _heat(figure: "Figure", axes: "Axes", error_map: ErrorMap) -> None:
    height, width = error_map.heat_size
    values = np.ma.masked_invalid(np.array(error_map.heat))
    image = axes.imshow(
        values,
        COLOURS,
        interpolation="nearest",
        aspect="equal" if error_map.heat_axes[0] == "row" else "auto",
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )
    first, second = error_map.heat_axes
    axes.set_title("the worst image" if error_map.worst else "the image")
    axes.set_xlabel(second)
    axes.set_ylabel(first)
    axes.locator_params(integer=True, nbins=5)
    figure.colorbar(image, cax=axes.inset_axes((1.03, 0, 0.05, 1)))


def _histogram(axes: "Axes", counts: Sequence[int]) -> None:
    """Entries by the size of their error; those that are equal stand apart on the left."""
    first, last = math.log10(EDGES[0]), math.log10(EDGES[-1])
    edges = [first - 0.5, *map(math.log10, EDGES), last + 0.5]
    axes.stairs(counts[1:], edges, fill=True, color=INKS["free"])
    axes.bar(first - 1.5, counts[0], width=0.5, color=INKS["floor"])
    axes.set_xlim(first - 2, last + 0.5)
    ticks = [first - 1.5, *range(round(first), round(last) + 1, 2)]
    axes.set_xticks(ticks, ["equal", *(f"1e{tick:g}" for tick in ticks[1:])])
    axes.set_title("entries by the size of their error")
    axes.set_xlabel("|port - reference| / rms of the reference")
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(powers_of_ten)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
