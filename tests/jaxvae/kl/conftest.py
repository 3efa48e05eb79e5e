"""Small models of images on both sides."""

import diffusers
import pytest

from jaxvae import AutoencoderKL, KLVAEConfig
from jaxvae.models.kl.config import DOWN_BLOCKS, UP_BLOCKS
from tests.jaxvae.conftest import Bridge, Pair


def blocks(*channels, attention=()):
    """The part of a configuration that says which blocks there are."""
    kinds = [i in attention for i in range(len(channels))]
    return {
        "block_out_channels": channels,
        "down_block_types": tuple(DOWN_BLOCKS[kind] for kind in kinds),
        "up_block_types": tuple(UP_BLOCKS[kind] for kind in kinds),
    }


# Every kind of block, a shortcut, four channels a group; tiles of 16 pixels.
SMALL = {**blocks(8, 16, 16, attention=(1,)), "norm_num_groups": 4, "sample_size": 16}


@pytest.fixture(scope="session")
def make_kl():
    def make(**changes):
        fields = SMALL | changes
        theirs = Bridge.randomise(diffusers.AutoencoderKL(**fields))
        return Pair(
            theirs, AutoencoderKL.from_torch_state(KLVAEConfig(**fields), Bridge.state(theirs))
        )

    return make


@pytest.fixture(scope="session")
def kl(make_kl):
    """The small model on both sides; tests must not change it."""
    return make_kl()
