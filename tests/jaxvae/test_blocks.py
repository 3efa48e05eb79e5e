import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae.models.cogvideox import blocks

CLOSE = 5e-6


@pytest.mark.parametrize(
    "options",
    [
        {"out_channels": 8},
        {"out_channels": None, "eps": 1e-2, "non_linearity": "gelu"},
        {"out_channels": 12},
        {"out_channels": 12, "conv_shortcut": True},
        {"out_channels": 12, "spatial_norm_dim": 4},
        {"out_channels": 8, "temb_channels": 6},
        {"out_channels": 12, "pad_mode": "replicate", "conv_shortcut": True},
    ],
)
def test_resnet(bridge, options):
    options = {"temb_channels": 0, "groups": 4} | options
    ours, theirs = bridge.load(
        lambda: blocks.ResnetBlock3D(8, **options, **bridge.build()),
        source.CogVideoXResnetBlock3D(8, **options),
    )
    run = jax.jit(lambda module, *args: module(*args))
    temb = bridge.normal(2, 6, seed=9) if options["temb_channels"] else None
    zq = bridge.normal(2, 2, 3, 3, 4, seed=8) if "spatial_norm_dim" in options else None
    cache, their_cache = None, None
    for seed in range(2):
        x = bridge.normal(2, 4, 6, 6, 8, seed=seed)
        y, cache = run(ours, x, temb, zq, cache)
        reference, their_cache = theirs(
            bridge.first(x),
            None if temb is None else torch.from_numpy(temb),
            None if zq is None else bridge.first(zq),
            their_cache,
        )
        assert bridge.error(y, bridge.last(reference)) < CLOSE
        if "pad_mode" in options:
            assert cache == their_cache
            assert set(cache) == {"conv1", "conv2", "conv_shortcut"}
        else:
            compared = bridge.caches_agree(cache, their_cache, CLOSE)
            assert compared == 2 + options.get("conv_shortcut", False)


def test_resnet_says_what_is_missing(bridge):
    x = jnp.asarray(bridge.normal(1, 1, 4, 4, 8))

    def block(**options):
        return blocks.ResnetBlock3D(8, temb_channels=0, groups=4, **options, **bridge.build())

    with pytest.raises(ValueError, match="`temb` was given to a block with temb_channels=0"):
        nnx.eval_shape(lambda: block()(x, jnp.ones((1, 6))))
    with pytest.raises(ValueError, match="norm1 is a SpatialNorm3D and needs `zq`"):
        nnx.eval_shape(lambda: block(spatial_norm_dim=4)(x))


@pytest.mark.slow
def test_resnet_drops_out_only_in_training(bridge):
    block = blocks.ResnetBlock3D(8, temb_channels=0, groups=4, dropout=0.5, **bridge.build())
    x = jnp.asarray(bridge.normal(1, 1, 4, 4, 8))
    assert not np.array_equal(block(x)[0], block(x)[0])
    block.eval()
    assert np.array_equal(block(x)[0], block(x)[0])


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (
            blocks.DownBlock3D,
            source.CogVideoXDownBlock3D,
            {"out_channels": 12, "num_layers": 2, "compress_time": True},
        ),
        (
            blocks.DownBlock3D,
            source.CogVideoXDownBlock3D,
            {"out_channels": 8, "add_downsample": False, "downsample_padding": 1},
        ),
        (blocks.MidBlock3D, source.CogVideoXMidBlock3D, {"num_layers": 2}),
        (blocks.MidBlock3D, source.CogVideoXMidBlock3D, {"spatial_norm_dim": 4}),
        (
            blocks.UpBlock3D,
            source.CogVideoXUpBlock3D,
            {"out_channels": 12, "num_layers": 2, "spatial_norm_dim": 4, "compress_time": True},
        ),
        (
            blocks.UpBlock3D,
            source.CogVideoXUpBlock3D,
            {"out_channels": 8, "spatial_norm_dim": 4, "add_upsample": False},
        ),
    ],
)
def test_blocks(bridge, ours, theirs, options):
    options = {"temb_channels": 0, "resnet_groups": 4} | options
    a, b = bridge.load(lambda: ours(8, **options, **bridge.build()), theirs(8, **options))
    run = jax.jit(lambda module, *args: module(*args))
    cache, their_cache = None, None
    for seed, frames in enumerate((3, 4)):
        zq = bridge.normal(1, frames, 3, 3, 4, seed=8) if "spatial_norm_dim" in options else None
        x = bridge.normal(1, frames, 6, 6, 8, seed=seed)
        y, cache = run(a, x, None, zq, cache)
        reference, their_cache = b(
            bridge.first(x), None, None if zq is None else bridge.first(zq), their_cache
        )
        assert bridge.error(y, bridge.last(reference)) < CLOSE
        assert bridge.caches_agree(cache, their_cache, CLOSE) == 2 * len(b.resnets)
