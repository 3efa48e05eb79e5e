"""Entries that a mask fills with a huge number, so that a softmax makes nothing of them.

Beside -1e9 no mistake in a score would show: the error counts in units of the array's size.
"""

import numpy as np

from parity.core.arrays import Array

HUGE = 1e4
"""How many times the largest of the others a number is that no score is."""

FIRST = 4096
"""Of so many entries the largest is looked at before that of all."""


def unmasked(ref: Array, port: Array) -> tuple[Array, Array]:
    """Both arrays with infinity where both have the one huge number that fills several entries.

    What is infinite alike on both sides counts nowhere; where only one side is filled the other
    differs.
    """
    if ref.shape != port.shape or ref.dtype.kind not in "fV" or ref.size == 0:
        return ref, port
    flat = ref.reshape(-1)
    some = np.abs(flat[:: max(1, flat.size // FIRST)]).astype(np.float64)
    for fill in (ref.min(), ref.max()):
        size = abs(float(fill))
        if size <= HUGE * some.max(initial=0.0, where=some < size):
            continue
        at = ref == fill
        others = np.abs(ref[~at])
        several = np.isfinite(fill) and np.count_nonzero(at) > 1 and others.size > 0
        if several and size > HUGE * float(others.max()):
            alike = at & (port == fill)
            return _infinite(ref, alike), _infinite(port, alike)
    return ref, port


def _infinite(array: Array, at: Array) -> Array:
    array = array.copy()
    array[at] = np.inf
    return array
