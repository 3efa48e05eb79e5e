"""Channels that are wrong beside others so much larger that no figure of the whole shows it.

Channels are the indices of the last axis; in an array of one dimension each entry is one.
"""

from dataclasses import dataclass

import numpy as np

from parity.core.arrays import Array
from parity.core.metrics import BLOCK, unit_roundoff

OFF = 1e-3
"""Relative error of one channel from which it is looked at by itself."""

FAR = 1e3
"""R of one channel that rounding does not make: of few entries the reference's own error may be
small by chance."""

ALONE = 8.0
"""Roundings of the whole that a channel of one entry may be off by: it may be a sum that cancels,
which the reference has exact by chance."""

MOST = 1 << 16
"""Of so many channels and more none is looked at: such an axis is none of channels."""


@dataclass(frozen=True)
class ChannelError:
    """The worst channel, with its relative L2 error and its R."""

    channel: int
    rel_l2: float
    r: float

    def __str__(self) -> str:
        return (
            f"channel {self.channel} alone is off by {100 * self.rel_l2:.3g} % (R {self.r:.3g}):"
            " it is small beside the others, so no figure of the whole array shows it"
        )


def suspicious(ref: Array, port: Array) -> bool:
    """True if some channel is off by more than rounding makes of one that does not cancel."""
    if not _has_channels(ref):
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        off, size = _powers(ref, port, ref)
        return bool((off > OFF**2 * size)[size > 0].any())


def worst_channel(ref: Array, port: Array, wide: Array) -> ChannelError | None:
    """The channel that is furthest from the float64 result, in units of the reference's distance.

    `None` unless it is off by more than any rounding makes of it.
    """
    if not _has_channels(ref):
        return None
    port_power, size = _powers(wide, port, wide)
    ref_power, _ = _powers(wide, ref, wide)
    unit = unit_roundoff(ref.dtype)
    floor = np.maximum(ref_power, (4 * unit) ** 2 * size)
    if len(floor) == ref.size:
        whole = max(float(ref_power.mean()), unit**2 * float(size.mean()))
        floor = np.maximum(floor, (ALONE / FAR) ** 2 * whole)
    seen = (floor > 0) & (size > 0) & (port_power > OFF**2 * size)
    r = np.zeros(len(floor))
    r[seen] = np.sqrt(port_power[seen] / floor[seen])
    worst = int(r.argmax())
    if r[worst] <= FAR:
        return None
    return ChannelError(worst, float(np.sqrt(port_power[worst] / size[worst])), float(r[worst]))


def _has_channels(array: Array) -> bool:
    return 1 < _channels(array) < MOST and array.dtype.kind in "fcV"


def _channels(array: Array) -> int:
    return array.shape[-1] if array.ndim > 1 and array.shape[-1] > 1 else array.size


def _powers(ref: Array, port: Array, size: Array) -> tuple[Array, Array]:
    """By channel, the sums of the squares of `port - ref` and of `size`, where all are finite."""
    channels = _channels(ref)
    wide = np.complex128 if ref.dtype.kind == "c" else np.float64
    flat = [one.reshape(-1, channels) for one in (ref, port, size)]
    off, whole = np.zeros(channels), np.zeros(channels)
    rows = max(1, BLOCK // channels)
    for start in range(0, len(flat[0]), rows):
        a, b, c = (one[start : start + rows].astype(wide) for one in flat)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            gap = b - a
            finite = np.isfinite(gap.sum()) and np.isfinite(c.sum())
        if not finite:
            gap, c = (np.where(np.isfinite(gap) & np.isfinite(c), one, 0) for one in (gap, c))
        off += np.einsum("nc,nc->c", gap, gap.conj()).real
        whole += np.einsum("nc,nc->c", c, c.conj()).real
    return off, whole
