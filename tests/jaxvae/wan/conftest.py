"""Small models of Wan 2.1 and 2.2 on both sides."""

from functools import cache

import diffusers
import pytest

from jaxvae import AutoencoderKLWan, WanVAEConfig
from tests.jaxvae.conftest import Bridge, Pair

CONFIGS = {
    "2.1": {
        "base_dim": 4,
        "z_dim": 2,
        "dim_mult": [1, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True, True],
        "scale_factor_spatial": 4,
    },
    # One block of each kind: time and space, space alone, neither; other channels in the decoder.
    "2.2": {
        "base_dim": 4,
        "decoder_base_dim": 6,
        "z_dim": 2,
        "dim_mult": [1, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True],
        "is_residual": True,
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 8,
    },
}
CONFIGS["one level"] = {**CONFIGS["2.1"], "dim_mult": [1, 2], "temperal_downsample": [True]}


@cache
def make_pair(version):
    fields = CONFIGS[version]
    theirs = Bridge.randomise(diffusers.AutoencoderKLWan(**fields))
    # so that few values are cut off at -1 and 1, where all that was computed before is the same
    theirs.decoder.conv_out.weight.data *= 0.3
    config = WanVAEConfig.from_dict(fields)
    return Pair(theirs, AutoencoderKLWan.from_torch_state(config, Bridge.state(theirs)))


@pytest.fixture(params=["2.1", pytest.param("2.2", marks=pytest.mark.slow)])
def wan(request):
    """The small model of each version; tests must not change it."""
    return make_pair(request.param)


@pytest.fixture
def wan21():
    return make_pair("2.1")


@pytest.fixture
def wan22():
    return make_pair("2.2")


def their_encode(theirs, x):
    return Bridge.last(theirs.encode(Bridge.first(x)).latent_dist.parameters)


def their_decode(theirs, z):
    return Bridge.last(theirs.decode(Bridge.first(z)).sample)
