"""PSNR and SSIM of a reconstruction, gathered frame by frame."""

import math

import numpy as np
from skimage.metrics import structural_similarity

from jaxvae.io.video import Frames

SMALLEST = 7
"""Rows and columns of the window of SSIM."""


class Gathered:
    """Sums over pairs of frames that come a few at a time."""

    def __init__(self) -> None:
        self._squares, self._entries = 0, 0
        self._similar: list[float] = []

    def add(self, found: Frames, wanted: Frames) -> None:
        """Count these frames, 8 bits a channel."""
        gap = found.astype(np.int64) - wanted
        self._squares += int(np.square(gap).sum())
        self._entries += gap.size
        if min(found.shape[1:3]) >= SMALLEST:
            self._similar += [
                float(structural_similarity(one, other, channel_axis=-1, data_range=255))
                for one, other in zip(found, wanted, strict=True)
            ]

    def quality(self) -> tuple[float, float]:
        """Return PSNR in decibels, of all pixels together, and the mean SSIM of the frames.

        PSNR is infinite for equal frames; SSIM is NaN for frames smaller than its window. Raises
        ValueError if nothing was counted.
        """
        if not self._entries:
            raise ValueError("no frame was compared")
        error = self._squares / self._entries
        psnr = 10 * math.log10(255**2 / error) if error else math.inf
        return psnr, float(np.mean(self._similar)) if self._similar else math.nan
