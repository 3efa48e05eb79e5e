from types import SimpleNamespace

import diffusers
import pytest
import torch

from jaxvae.run.chunks import chunk_bounds


def their_chunks(frames, size):
    """The chunks that diffusers' own loop hands to the encoder."""
    seen = []

    def encoder(x, conv_cache):
        seen.append((int(x[0, 0, 0]), int(x[0, 0, -1]) + 1))
        return x, None

    vae = SimpleNamespace(
        use_tiling=False, num_sample_frames_batch_size=size, encoder=encoder, quant_conv=None
    )
    video = torch.arange(frames).reshape(1, 1, frames, 1, 1)
    diffusers.AutoencoderKLCogVideoX._encode(vae, video)
    return seen


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_bounds_are_those_of_diffusers(size):
    for frames in range(1, 60):
        assert chunk_bounds(frames, size) == their_chunks(frames, size), frames


@pytest.mark.parametrize(("frames", "size"), [(0, 8), (5, 0)])
def test_nothing_to_split_is_an_error(frames, size):
    with pytest.raises(ValueError, match="at least 1"):
        chunk_bounds(frames, size)
