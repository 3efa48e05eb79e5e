"""The order of axes in which one array's values are another's. Only the values decide."""

import itertools
from functools import partial

import numpy as np
from jaxtyping import Shaped

from parity.core.metrics import BLOCK

Array = Shaped[np.ndarray, "..."]

CLOSE = 2.0**-20
"""Values this near, in units of each entry, are the same but for rounding."""

SLAB = 32
"""Entries of the last axis that are compared at once: what is read of both kernels stays in the
processor's cache, which halves the time."""


def same_values(ref: Array, port: Array, tolerance: float = 0.0) -> tuple[int, ...] | None:
    """The order of the reference's axes in which its values are the port's, the usual one first.

    Axes that follow one another may be merged or split on the way. `tolerance` is relative to each
    entry: integers, infinities and NaN have none, and lie in the same places.
    """
    if ref.size != port.size:
        return None
    if not ref.size:
        return usual_order(ref.ndim)
    if ref.dtype.kind in "biu" or port.dtype.kind in "biu":
        tolerance = 0.0
    for axes in itertools.chain([usual_order(ref.ndim)], itertools.permutations(range(ref.ndim))):
        moved = ref.transpose(axes)
        if regroups(moved.shape, port.shape) and _equal(moved, port, tolerance):
            return axes
    return None


def usual_order(ndim: int) -> tuple[int, ...]:
    """The order of axes that a kernel has in Flax: `(2, 3, 1, 0)` of PyTorch's."""
    return (*range(2, ndim), 1, 0) if ndim > 1 else tuple(range(ndim))


def usual_axes(ref: tuple[int, ...], port: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The orders of axes that a kernel of this shape usually has; none for another shape.

    Two where it has as many channels in as out: the transposed convolution of Flax has its channels
    either way round.
    """
    usual = usual_order(len(ref))
    if tuple(ref[i] for i in usual) != port:
        return ()
    either = len(ref) > 2 and ref[0] == ref[1]
    return (usual, (*usual[:-2], *usual[:-3:-1])) if either else (usual,)


def regroups(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if each axis of one is a run of axes of the other; axes of length 1 do not count."""
    few, many = sorted(([n for n in sizes if n != 1] for sizes in (shape, other)), key=len)
    runs = iter(many)
    for wanted in few:
        found = 1
        while found < wanted:
            found *= next(runs, wanted + 1)
        if found != wanted:
            return False
    return next(runs, None) is None


def fingerprint(values: Array) -> tuple[int, int]:
    """Equal for the same values in any order, and in practice for no others."""
    flat = np.ascontiguousarray(values).reshape(-1)
    words = flat.view(f"u{min(flat.itemsize, 4)}")
    plain = mixed = 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK].astype(np.uint64)
        plain += int(block.sum())
        mixed += int((block * block).sum())  # modulo 2**64
    return plain, mixed % 2**64


def constant(values: Array) -> bool:
    """True if all entries are one value."""
    return bool(values.size) and bool((values == values.flat[0]).all())


def _equal(moved: Array, port: Array, tolerance: float) -> bool:
    port = port.reshape(moved.shape)
    line = (0,) * (moved.ndim - 1)  # one line of it tells nearly always
    same = partial(_near, tolerance) if tolerance else np.array_equal
    return same(moved[line], port[line]) and all(
        same(moved[..., at : at + SLAB], port[..., at : at + SLAB])
        for at in range(0, moved.shape[-1] if moved.ndim else 0, SLAB)
    )


def _near(tolerance: float, ref: Array, port: Array) -> bool:
    """True if each entry is within the tolerance of its own size, or no number on both sides."""
    wide = np.complex128 if "c" in (ref.dtype.kind, port.dtype.kind) else np.float64
    ref, port = ref.astype(wide), port.astype(wide)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        near = np.isfinite(ref) & (np.abs(port - ref) <= tolerance * np.abs(ref))
    return bool((near | (port == ref) | (np.isnan(ref) & np.isnan(port))).all())
