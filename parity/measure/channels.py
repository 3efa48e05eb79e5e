"""Channels that are wrong beside others so much larger that no figure of the whole shows it."""

from dataclasses import dataclass

import numpy as np

from parity.core.arrays import Array
from parity.core.metrics import BLOCK, unit_roundoff

OFF = 1e-3
"""Relative error of one channel from which it is looked at by itself."""

FAR = 1e3
"""R of one channel that rounding does not make: of few entries the reference's own error may be
small by chance."""

MOST = 1 << 16
"""Of so many channels and more none is looked at: such an axis is none of channels."""


@dataclass(frozen=True)
class ChannelError:
    """The worst channel, an index of the last axis, with its relative L2 error and its R."""

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
    floor = np.maximum(ref_power, (4 * unit_roundoff(ref.dtype)) ** 2 * size)
    seen = (floor > 0) & (port_power > OFF**2 * size)
    r = np.zeros(ref.shape[-1])
    r[seen] = np.sqrt(port_power[seen] / floor[seen])
    worst = int(r.argmax())
    if r[worst] <= FAR:
        return None
    return ChannelError(worst, float(np.sqrt(port_power[worst] / size[worst])), float(r[worst]))


def _has_channels(array: Array) -> bool:
    return array.ndim > 1 and 1 < array.shape[-1] < MOST and array.dtype.kind in "fV"


def _powers(ref: Array, port: Array, size: Array) -> tuple[Array, Array]:
    """By channel, the sums of the squares of `port - ref` and of `size`, where all are finite."""
    channels = ref.shape[-1]
    flat = [one.reshape(-1, channels) for one in (ref, port, size)]
    off, whole = np.zeros(channels), np.zeros(channels)
    rows = max(1, BLOCK // channels)
    for start in range(0, len(flat[0]), rows):
        a, b, c = (one[start : start + rows].astype(np.float64) for one in flat)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
            gap = b - a
            finite = np.isfinite(gap.sum()) and np.isfinite(c.sum())
        if not finite:
            gap, c = (np.where(np.isfinite(gap) & np.isfinite(c), one, 0) for one in (gap, c))
        off += np.einsum("nc,nc->c", gap, gap)
        whole += np.einsum("nc,nc->c", c, c)
    return off, whole
