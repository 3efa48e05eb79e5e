"""The command `jaxvae` on Wan's folders, against diffusers on the same frames."""

import json

import numpy as np
import pytest
import torch

from jaxvae.cli.reconstruct import returned
from jaxvae.io.video import from_pixels, to_pixels
from tests.commands import jaxvae


def test_frames_that_come_back(wan21, wan22):
    for wan in (wan21, wan22):
        assert [returned(frames, wan.ours.config) for frames in range(1, 11)] == [
            *(1,) * 4,
            *(5,) * 4,
            *(9,) * 2,
        ]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--tile", "16x16")])
def test_reconstruct_gives_the_frames_of_diffusers(wan22, tmp_path, options):
    clip = np.random.default_rng(0).integers(0, 256, (7, 25, 34, 3), np.uint8)
    np.save(tmp_path / "clip.npy", clip)
    wan22.theirs.save_pretrained(tmp_path / "vae")
    done = jaxvae(
        "reconstruct",
        tmp_path / "clip.npy",
        tmp_path / "back.npy",
        "--weights",
        tmp_path / "vae",
        "--json",
        *options,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["frames"], facts["left_out"], facts["size"]) == (5, 2, "24x32")
    window = torch.from_numpy(from_pixels(clip[:5, :24, 1:33])).movedim(-1, 0)[None]
    theirs = wan22.theirs
    if options:
        theirs.enable_tiling(16, 16, 8, 8)
    wanted = to_pixels(theirs(window).sample[0].movedim(0, -1).numpy())
    theirs.disable_tiling()
    assert np.abs(np.load(tmp_path / "back.npy").astype(int) - wanted).max() <= 1
