"""Changes of the reference's result alone: a factor, limits, a rounding, another order."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np

from parity.core.arrays import Array

Shown = tuple[float, str, str]
"""The part of the error that is left, the cause, what was changed."""

ROWS = 8
"""From so many rows on, one offset for each column says something about all of them."""

SAME = 1e-4
"""Values so near to each other, by size, are the same: those of one distribution are farther."""

Way = Callable[[Array, Array], Iterator[tuple[str, str, Array]]]

NOTHING: Shown = (float("inf"), "", "")


def best(ref: Array, port: Array) -> Shown:
    """The change that explains the error best; `ref` is the reference's array in float64."""
    return _best(ref, port, (_order, _rounded, _limits, _line))


def reordered(ref: Array, port: Array) -> Shown:
    """The same values in whatever other order, where they are: it tells least."""
    return _best(ref, port, (_entries,))


def _best(ref: Array, port: Array, ways: Sequence[Way]) -> Shown:
    if ref.shape != port.shape or ref.dtype != np.float64 or ref.size < 16:
        return NOTHING
    error = float(np.linalg.norm(port.astype(np.float64) - ref))
    if not np.isfinite(error) or error == 0.0:
        return NOTHING
    ways_tried = itertools.chain(*(way(ref, port) for way in ways))
    found = [
        (float(np.linalg.norm(port.astype(np.float64) - changed)) / error, cause, text)
        for cause, text, changed in ways_tried
    ]
    return min(found, default=NOTHING, key=lambda shown: shown[0])


def _order(ref: Array, _: Array) -> Iterator[tuple[str, str, Array]]:
    axes = [axis for axis, n in enumerate(ref.shape) if n > 1]
    for axis in axes:
        yield "reshape_order", f"axis {axis} in opposite order", np.flip(ref, axis)
    for a, b in itertools.combinations(axes, 2):
        if ref.shape[a] == ref.shape[b]:
            yield "reshape_order", f"axes {a} and {b} exchanged", np.swapaxes(ref, a, b)
            yield "reshape_order", f"axes {a} and {b} in opposite order", np.flip(ref, (a, b))


def _entries(ref: Array, port: Array) -> Iterator[tuple[str, str, Array]]:
    changed: Array = np.empty(ref.size)
    changed[np.argsort(port, axis=None)] = np.sort(ref, axis=None)
    changed = changed.reshape(ref.shape)
    if float(np.linalg.norm(port - changed)) <= SAME * float(np.linalg.norm(port)):
        yield "reshape_order", "another order of the same values", changed


def _rounded(ref: Array, port: Array) -> Iterator[tuple[str, str, Array]]:
    for name in ("bfloat16", "float16"):
        kind = np.dtype(getattr(ml_dtypes, name, name))
        with np.errstate(over="ignore"):  # to infinity, as the port would
            if port.dtype.itemsize > kind.itemsize and (port == port.astype(kind)).all():
                yield "dtype", f"the result rounded to {name}", ref.astype(kind).astype(np.float64)


def _limits(ref: Array, port: Array) -> Iterator[tuple[str, str, Array]]:
    low, high = float(port.min()), float(port.max())
    at = [value for value in (low, high) if np.count_nonzero(port == value) > 1]
    if at and (low > ref.min() or high < ref.max()):
        named = {f"at least {low:g}": low, f"at most {high:g}": high}
        words = [word for word, value in named.items() if value in at]
        yield "clamp", f"a limit to values of {' and '.join(words)}", np.clip(ref, low, high)


def _line(ref: Array, port: Array) -> Iterator[tuple[str, str, Array]]:
    factor, offset = np.polyfit(ref.reshape(-1), port.astype(np.float64).reshape(-1), 1)
    text = f"a factor {factor:.6g} and an offset {offset:.3g}"
    yield "scale_or_offset", text, factor * ref + offset
    if ref.ndim > 1 and ref.size >= ROWS * ref.shape[-1]:
        offsets = (port - ref).reshape(-1, ref.shape[-1]).mean(0)
        yield "scale_or_offset", "an offset of its own for each channel", ref + offsets
