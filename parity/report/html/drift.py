"""Chart of the error along the network: four lines over the calls in the order of execution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from parity.core.metrics import MANTISSA
from parity.core.verdicts import Fault, Row
from parity.report.html.svg import INKS, drawn, powers_of_ten
from parity.report.table import largest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT, RIGHT, TOP, BOTTOM = 0.065, 0.995, 0.97, 0.13
"""Where the axes lie in the figure, as parts of its width and height: the page puts names and a
cursor over it."""

LOWEST = 1e-12
"""Errors below this are drawn as this."""

FEW = 60
"""Calls of a network so small that each is drawn as a dot as well."""

MANY = 1000
"""Calls of a network so large that its lines are thin."""

ROOM = 0.06
"""The part of the width that the name of a case needs."""


@dataclass(frozen=True)
class Point:
    """One call: the worst relative L2 error of its outputs of each sort, NaN if not measured.

    `row` is the first of its rows. `exclusive` counts its child inputs too (see `Row.own`). `floor`
    is what R is measured in: the distance of the reference from float64, at least four roundings,
    and `measured` says that it is not just those.
    """

    row: int
    case: str
    path: str
    call: int
    free: float
    inclusive: float
    exclusive: float
    floor: float
    measured: bool


LINES = ("free", "inclusive", "exclusive", "floor")


@dataclass(frozen=True)
class Mark:
    """A word over the chart; `at` and `width` are percent of the width of the figure."""

    text: str
    at: float
    width: float


@dataclass(frozen=True)
class Drift:
    """The chart, and what the page puts over it: faults by number, and the names of cases."""

    svg: str
    points: tuple[Point, ...]
    faults: tuple[Mark, ...]
    cases: tuple[Mark, ...]
    left: float = 100 * LEFT
    width: float = 100 * (RIGHT - LEFT)


def points(rows: Sequence[Row]) -> tuple[Point, ...]:
    """One per call, in the order of the rows, which is that of execution."""
    calls: dict[tuple[str, str, int], list[int]] = {}
    for at, row in enumerate(rows):
        calls.setdefault((row.case, row.path, row.call), []).append(at)
    return tuple(_point(found[0], [rows[at] for at in found]) for found in calls.values())


def _point(first: int, rows: Sequence[Row]) -> Point:
    return Point(
        first,
        rows[0].case,
        rows[0].path,
        rows[0].call,
        largest([row.metrics.rel_l2 for row in rows if row.metrics]),
        largest([row.inclusive.rel_l2 for row in rows if row.inclusive]),
        largest([row.own for row in rows]),
        largest([_floor(row) for row in rows]),
        any(row.exclusive and row.exclusive.floor_rel_l2 >= 0 for row in rows),
    )


def _floor(row: Row) -> float:
    name = {"complex64": "float32", "complex128": "float64"}.get(row.dtype, row.dtype)
    least = 4 * 2.0 ** -MANTISSA[name] if name in MANTISSA else math.nan
    found = row.exclusive.floor_rel_l2 if row.exclusive else math.nan
    return least if math.isnan(found) else max(found, least)


def drift(rows: Sequence[Row], faults: Sequence[Fault]) -> Drift:
    """The chart of a report's rows."""
    found = points(rows)
    places = {(point.case, point.path, point.call): i for i, point in enumerate(found)}
    at = [places.get((fault.case, fault.path, fault.call)) for fault in faults]
    bounds = [i for i, point in enumerate(found) if i == 0 or point.case != found[i - 1].case]
    shown = [i for i in at if i is not None]
    svg = drawn("drift", 11, 3.6, lambda figure: _draw(figure, found, bounds, shown))
    scale = 100 * (RIGHT - LEFT) / max(len(found), 1)
    cases = [
        Mark(found[a].case, round(100 * LEFT + scale * a, 3), round(scale * (b - a), 3))
        for a, b in pairwise([*bounds, len(found)])
    ]
    marks = [
        Mark(str(number), round(100 * LEFT + scale * (i + 0.5), 3), 0)
        for number, i in enumerate(at, 1)
        if i is not None
    ]
    return Drift(svg, found, tuple(marks), tuple(x for x in cases if x.width > 100 * ROOM))


def _draw(
    figure: "Figure", found: Sequence[Point], bounds: Sequence[int], faults: Sequence[int]
) -> None:
    axes = figure.add_axes((LEFT, BOTTOM, RIGHT - LEFT, TOP - BOTTOM))
    values = (getattr(point, name) for point in found for name in LINES)
    errors = [value for value in values if 0 < value < math.inf]
    low, high = max(min(errors, default=1e-8), LOWEST), max([*errors, 1e-6])
    bottom, top = 10.0 ** (math.floor(math.log10(low)) - 1), 10.0 ** math.ceil(math.log10(high))
    for name in LINES:
        errors = [(i, getattr(point, name)) for i, point in enumerate(found)]
        line = [(i, _within(error, bottom, top)) for i, error in errors if error != 0]
        axes.plot(
            [i for i, _ in line],
            [error for _, error in line],
            color=INKS[name],
            linewidth=1.2 if len(found) < MANY else 0.6,
            linestyle=(0, (4, 2)) if name == "floor" else "-",
            marker="." if len(found) < FEW else None,
            zorder=2 + LINES.index(name),
        )
        exact = [i for i, error in errors if error == 0]
        # one path of short strokes: a marker for each would take more room than all the lines
        strokes = [(i, bottom * length) for i in exact for length in (1, 2, math.nan)]
        axes.plot([i for i, _ in strokes], [y for _, y in strokes], color=INKS[name], linewidth=0.8)
    for start in bounds[1:]:
        axes.axvline(start - 0.5, color=INKS["muted"], linewidth=0.8)
    for call in faults:
        axes.axvline(call, color=INKS["bad"], linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(powers_of_ten)
    axes.minorticks_off()
    axes.set_xlim(-0.5, max(len(found), 1) - 0.5)
    axes.set_ylim(bottom, top)
    axes.set_ylabel("relative L2 error")
    axes.set_xlabel("calls in the order of execution")
    axes.grid(axis="y")


def _within(value: float, bottom: float, top: float) -> float:
    """The value as it is drawn: infinity at the upper edge."""
    return value if math.isnan(value) else min(max(value, bottom), top)
