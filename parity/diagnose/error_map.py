"""Where in an array an error is: in words, and as a map that is small enough for a report."""

import numpy as np
from jaxtyping import Float

from parity.capture.layout import AXES
from parity.core.arrays import Array
from parity.core.error_map import EDGES, Along, ErrorMap
from parity.core.metrics import BLOCK, rms
from parity.diagnose.case_record import CaseRecord
from parity.force.common import reference
from parity.judge.faults import Found

Errors = Float[np.ndarray, "..."]

LONGEST = 128
"""Entries that are kept of an axis."""

CELLS = 64
"""Cells that are kept of each axis of an image."""

SHARE = 0.999
"""A part of an array holds the error if this much of its square is there."""


def error_map_of(found: Found, record: CaseRecord) -> ErrorMap | None:
    """Error map of a child input or an output of the call, given the reference's inputs.

    Where only the inclusive error tells, of what it returns free-running. `None` for arrays that
    cannot be subtracted.
    """
    matches = {match.ref.order: match for match in record.matches}
    match, exclusives, name = matches[found.row.order], record.exclusives, found.row.leaf
    child = max(found.child_inputs, key=lambda child: child.error.rel_l2, default=None)
    leaves = match.outputs
    if child is not None:
        leaves, name = matches[child.child].inputs, child.leaf
    leaf = next((leaf for leaf in leaves if leaf.ref.name == name), None)
    if leaf is None or leaf.ref.buffer is None:
        return None
    free, named, to = False, True, "" if child is None else child.path
    if child is not None:
        port = exclusives.received.get((child.child, name))
    elif found.judged.blame == "exclusive":
        port = exclusives.outputs.get((found.row.order, name))
        named = not match.ref.tapped or leaf.ref.moved
    else:
        port, free = leaf.port.buffer if leaf.port is not None else None, True
    if port is None:
        return None
    ref = reference(leaf, record.store)
    return error_map(ref, record.store.get(port), leaf=name, to=to, free=free, named=named)


def error_map(
    ref: Array, port: Array, *, leaf: str = "", to: str = "", free: bool = False, named: bool = True
) -> ErrorMap | None:
    """Error map of two channel-last arrays; `None` if they cannot be subtracted.

    Of other arrays axes are not `named` but numbered.
    """
    if ref.shape != port.shape or ref.ndim == 0 or ref.size == 0:
        return None
    unit = rms(ref) or 1.0
    unit = unit if np.isfinite(unit) else 1.0
    gap = _gap(ref, port)
    gap /= unit
    counts = _counts(gap)
    np.square(gap, out=gap)
    names = _axes(gap, "axis", named)
    worst, axes, image = _worst_image(gap, names, channels=named)
    cells = np.sqrt(_largest(_largest(image, 0, CELLS), 1, CELLS))
    along = tuple(_along(gap, axis, name) for axis, name in enumerate(names))
    size, heat = (image.shape[0], image.shape[1]), tuple(tuple(map(_short, row)) for row in cells)
    return ErrorMap(leaf, to, free, _short(unit), along, worst, axes, size, heat, counts)


def _axes(array: Errors, word: str, named: bool) -> tuple[str, ...]:
    numbers = tuple(f"{word} {i}" for i in range(array.ndim))
    return AXES.get(array.ndim, numbers) if named else numbers


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


def location(ref: Array, port: Array, *, named: bool = True) -> str:
    """A phrase such as "only in row 15 of 16", for channel-last arrays; "" if none fits.

    Of other arrays axes are not `named` but numbered.
    """
    if ref.shape != port.shape or ref.ndim == 0:
        return ""
    with np.errstate(over="ignore"):  # of masks with the largest number that there is
        gap = np.square(_gap(ref, port))
    total = float(gap.sum())
    if not np.isfinite(total) or total == 0.0:
        return ""
    border = _border(gap, total) if named else ""
    return _along_axes(gap, total, named) or border or _everywhere(ref, port)


def _along_axes(gap: Errors, total: float, named: bool) -> str:
    parts = []
    for axis, name in enumerate(_axes(gap, "entry of axis", named)):
        size = gap.shape[axis]
        if size < 3:
            continue
        along = gap.sum(tuple(i for i in range(gap.ndim) if i != axis))
        busy = np.flatnonzero(along > (1 - SHARE) * total / size)
        if 0 < busy.size <= max(size // 2, 1) and along[busy].sum() >= SHARE * total:
            which = ", ".join(map(str, busy[:4])) + (", ..." if busy.size > 4 else "")
            parts.append(f"{name} {which} of {size}")
    return f"only in {' and '.join(parts)}" if parts else ""


def _border(gap: Errors, total: float) -> str:
    axes = {5: (2, 3), 4: (1, 2)}.get(gap.ndim)
    if axes is None or min(gap.shape[axis] for axis in axes) < 5:
        return ""
    for width in (1, 2, 3):
        if 2 * width + 1 >= min(gap.shape[axis] for axis in axes):
            return ""
        inner = [slice(None)] * gap.ndim
        for axis in axes:
            inner[axis] = slice(width, -width)
        if float(gap[tuple(inner)].sum()) <= (1 - SHARE) * total:
            return f"only in a border {width} wide"
    return ""


def _everywhere(ref: Array, port: Array) -> str:
    if np.array_equal(np.sort(ref, axis=None), np.sort(port, axis=None)):
        return "the same values in another order"
    return "everywhere"
