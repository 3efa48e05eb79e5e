"""Error maps: the error of a fault along the axes of its array, small enough for a report."""

import numpy as np
from jaxtyping import Float

from parity.capture.layout import AXES
from parity.core.arrays import Array
from parity.core.calls import LeafMatch, Match
from parity.core.error_map import EDGES, Along, ErrorMap
from parity.core.metrics import BLOCK, rms
from parity.core.store import Buffer
from parity.diagnose.case_record import CaseRecord
from parity.force.common import reference
from parity.judge.faults import Found

Errors = Float[np.ndarray, "..."]

LONGEST = 128
"""Entries that are kept of an axis."""

CELLS = 64
"""Cells that are kept of each axis of an image."""


def error_map_of(found: Found, record: CaseRecord) -> ErrorMap | None:
    """Error map of a child input or an output of the call, given the reference's inputs.

    Where only the inclusive error tells, of what it returns free-running. `None` for arrays that
    cannot be subtracted.
    """
    matches = {match.ref.order: match for match in record.matches}
    match, exclusives = matches[found.row.order], record.exclusives
    leaf: LeafMatch | None
    if found.child_inputs:
        worst = max(found.child_inputs, key=lambda child: child.error.rel_l2)
        leaf = _leaf(matches[worst.child], "inputs", worst.leaf)
        buffer = exclusives.received.get((worst.child, worst.leaf))
        return _of(leaf, buffer, record, to=worst.path)
    leaf = _leaf(match, "outputs", found.row.leaf)
    named = not match.ref.tapped or (leaf is not None and leaf.ref.moved)
    if found.judged.blame == "exclusive":
        port = exclusives.outputs.get((found.row.order, found.row.leaf))
        return _of(leaf, port, record, named=named)
    free = leaf.port.buffer if leaf is not None and leaf.port is not None else None
    return _of(leaf, free, record, free=True)


def _leaf(match: Match, side: str, name: str) -> LeafMatch | None:
    leaves: tuple[LeafMatch, ...] = getattr(match, side)
    return next((leaf for leaf in leaves if leaf.ref.name == name), None)


def _of(
    leaf: LeafMatch | None,
    port: Buffer | None,
    record: CaseRecord,
    to: str = "",
    free: bool = False,
    named: bool = True,
) -> ErrorMap | None:
    if leaf is None or port is None or leaf.ref.buffer is None:
        return None
    ref = reference(leaf, record.store)
    return error_map(ref, record.store.get(port), leaf=leaf.ref.name, to=to, free=free, named=named)


def error_map(
    ref: Array,
    port: Array,
    *,
    leaf: str = "",
    to: str = "",
    free: bool = False,
    named: bool = True,
) -> ErrorMap | None:
    """Error map of two channel-last arrays; `None` if they cannot be subtracted.

    Of other arrays axes are not `named` but numbered.
    """
    if ref.shape != port.shape or ref.ndim == 0 or ref.size == 0:
        return None
    unit = rms(ref) or 1.0
    gap = _gap(ref, port)
    gap /= unit if np.isfinite(unit) else 1.0
    counts = _counts(gap)
    np.square(gap, out=gap)
    numbers = tuple(f"axis {i}" for i in range(gap.ndim))
    names = AXES.get(gap.ndim, numbers) if named else numbers
    worst, axes, image = _worst_image(gap, names, channels=named)
    cells = _largest(_largest(image, 0, CELLS), 1, CELLS)
    along = (_along(gap, axis, name) for axis, name in enumerate(names))
    return ErrorMap(
        leaf=leaf,
        to=to,
        free=free,
        unit=_short(unit if np.isfinite(unit) else 1.0),
        along=tuple(along),
        worst=worst,
        heat_axes=axes,
        heat_size=(image.shape[0], image.shape[1]),
        heat=tuple(tuple(map(_short, line)) for line in np.sqrt(cells)),
        counts=counts,
    )


def _gap(ref: Array, port: Array) -> Errors:
    """|port - ref|, infinite where only one of the two is finite or both are not, but unlike."""
    wide = np.complex128 if "c" in (ref.dtype.kind, port.dtype.kind) else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        # converted in blocks: arrays may be large
        gap: Errors = np.abs(np.subtract(port, ref, dtype=wide, casting="unsafe"))
    if not np.isfinite(gap).all():
        alike = (ref == port) | (np.isnan(ref) & np.isnan(port))
        gap[~np.isfinite(gap)] = np.inf
        gap[alike] = 0.0
    return gap


def _counts(gap: Errors) -> tuple[int, ...]:
    equal = int(gap.size - np.count_nonzero(gap))
    flat, total = gap.reshape(-1), np.zeros(len(EDGES) + 1, np.int64)
    for start in range(0, flat.size, BLOCK):  # of every entry there is an index for a moment
        at = np.searchsorted(EDGES, flat[start : start + BLOCK], side="right")
        total += np.bincount(at, minlength=total.size)
    total[0] -= equal
    return (equal, *map(int, total))


def _along(squares: Errors, axis: int, name: str) -> Along:
    others = tuple(i for i in range(squares.ndim) if i != axis)
    errors = _largest(np.sqrt(squares.mean(others)), 0, LONGEST)
    return Along(name, squares.shape[axis], tuple(map(_short, errors)))


def _worst_image(
    squares: Errors, names: tuple[str, ...], channels: bool
) -> tuple[str, tuple[str, str], Errors]:
    """(which one, the names of its axes, mean squares over channels, if any) of the worst image."""
    if squares.ndim == 1:
        return "", ("", names[0]), squares[None, :]
    if channels and squares.ndim > 3:
        squares = squares.mean(-1)
    axes = (names[squares.ndim - 2], names[squares.ndim - 1])
    leading = squares.shape[:-2]
    at = np.unravel_index(int(np.argmax(squares.sum((-2, -1)))), leading) if leading else ()
    word = "{} {}" if channels else "entry {1} of {0}"
    found = zip(names, at, leading, strict=False)
    text = ", ".join(word.format(name, int(i)) for name, i, n in found if n > 1)
    return text, axes, squares[at]


def _largest(values: Errors, axis: int, most: int) -> Errors:
    """At most `most` entries along an axis, each the largest among neighbours."""
    size = values.shape[axis]
    starts = np.unique(np.arange(most) * size // most) if size > most else np.arange(size)
    reduced: Errors = np.maximum.reduceat(values, starts, axis=axis)
    return reduced


def _short(value: float) -> float:
    """Three digits: an error map is looked at."""
    return float(f"{value:.3g}")
