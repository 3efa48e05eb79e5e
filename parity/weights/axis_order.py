"""The order of axes in which one array's values are another's. Only the values decide."""

import itertools

import numpy as np
from jaxtyping import Shaped

from parity.core.metrics import BLOCK, compare_arrays

Array = Shaped[np.ndarray, "..."]

CLOSE = 2.0**-20
"""Values this near, in units of the largest, are the same but for rounding."""

SLAB = 32
"""Entries of the last axis that are compared at once: what is read of both kernels stays in the
processor's cache, which halves the time."""


def same_values(ref: Array, port: Array, tolerance: float = 0.0) -> tuple[int, ...] | None:
    """The order of the reference's axes in which its values are the port's, the usual one first.

    Axes that follow one another may be merged or split on the way. `tolerance` is relative to the
    largest value.
    """
    if ref.size != port.size:
        return None
    if not ref.size:
        return usual_order(ref.ndim)
    limit = tolerance * float(np.abs(ref).max()) if tolerance else 0.0
    for axes in itertools.chain([usual_order(ref.ndim)], itertools.permutations(range(ref.ndim))):
        moved = ref.transpose(axes)
        if regroups(moved.shape, port.shape) and _equal(moved, port, limit):
            return axes
    return None


def usual_order(ndim: int) -> tuple[int, ...]:
    """The order of axes that a kernel has in Flax: `(2, 3, 1, 0)` of PyTorch's."""
    return (*range(2, ndim), 1, 0) if ndim > 1 else tuple(range(ndim))


def usual_axes(ref: tuple[int, ...], port: tuple[int, ...]) -> tuple[int, ...] | None:
    """Order of axes that a kernel of this shape usually has; `None` if two are usual."""
    usual = usual_order(len(ref))
    if tuple(ref[i] for i in usual) != port:
        return None
    # the transposed convolution of Flax has its channels either way round
    return usual if len(ref) <= 2 or ref[0] != ref[1] else None


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


def _equal(moved: Array, port: Array, limit: float) -> bool:
    port = port.reshape(moved.shape)
    line = (0,) * (moved.ndim - 1)  # one line of it tells nearly always
    if not limit:
        return np.array_equal(moved[line], port[line]) and all(
            np.array_equal(moved[..., at : at + SLAB], port[..., at : at + SLAB])
            for at in range(0, moved.shape[-1] if moved.ndim else 0, SLAB)
        )
    return all(
        compare_arrays(np.ascontiguousarray(a), np.ascontiguousarray(b)).max_abs <= limit
        for a, b in ((moved[line], port[line]), (moved, port))
    )
