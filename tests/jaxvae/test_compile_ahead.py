"""Programs compiled ahead are those that the calls run: nothing is left to compile."""

import jax
import numpy as np
import pytest

from tests.jaxvae.conftest import blocks


@pytest.mark.slow
def test_nothing_is_left_to_compile(make_pair, bridge, compiled):
    # two blocks are enough: what counts is which shapes meet
    vae = make_pair(**blocks(8, 8)).ours
    video, latent = bridge.normal(1, 19, 6, 12, 3), bridge.normal(1, 5, 3, 6, 4)
    vae.enable_tiling(8, 8)
    vae.compile_ahead(video=video.shape, latent=latent.shape)
    # a first and a next chunk, of two widths, in both directions
    assert [name for name in compiled if "_compiled" in name] == ["jit(_compiled)"] * 8
    compiled.clear()
    jax.block_until_ready((vae.encode(video).parameters, vae.decode(latent)))
    assert [name for name in compiled if "_compiled" in name] == []


def test_shapes_that_cannot_be(pair):
    with pytest.raises(ValueError, match=r"video: .* channels are last"):
        pair.ours.compile_ahead(video=(1, 3, 9, 16, 16))
    for shape in (np.zeros((1, 3, 16, 16, 3)), (1, 3.0, 16, 16, 3)):
        with pytest.raises(ValueError, match=r"video: .* 5 integers, .*\.shape"):
            pair.ours.compile_ahead(video=shape)
    with pytest.raises(ValueError, match="expected the shape of a video or a latent"):
        pair.ours.compile_ahead()
