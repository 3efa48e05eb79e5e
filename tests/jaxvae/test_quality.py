"""PSNR and SSIM, frame by frame, against scikit-image's of the whole."""

import math

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from jaxvae.io.quality import Gathered

RNG = np.random.default_rng(0)
WANTED = RNG.integers(0, 256, (5, 16, 20, 3), dtype=np.uint8)
FOUND = np.clip(WANTED + RNG.integers(-20, 21, WANTED.shape), 0, 255).astype(np.uint8)


def test_the_same_in_parts():
    gathered = Gathered()
    gathered.add(FOUND[:2], WANTED[:2])
    gathered.add(FOUND[2:], WANTED[2:])
    psnr, ssim = gathered.quality()
    assert psnr == pytest.approx(peak_signal_noise_ratio(WANTED, FOUND), abs=1e-9)
    each = [
        structural_similarity(*pair, channel_axis=-1) for pair in zip(FOUND, WANTED, strict=True)
    ]
    assert ssim == pytest.approx(np.mean(each))
    assert 0.5 < ssim < 1


def test_equal_frames_and_small_ones():
    gathered = Gathered()
    gathered.add(WANTED[:, :4], WANTED[:, :4])
    psnr, ssim = gathered.quality()
    assert psnr == math.inf
    assert math.isnan(ssim)
    with pytest.raises(ValueError, match="no frame was compared"):
        Gathered().quality()
