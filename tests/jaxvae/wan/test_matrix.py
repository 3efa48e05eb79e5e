"""Wan against diffusers, over frames, sizes, batches, tiles, slices and number formats."""

import copy

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvae import AutoencoderKLWan
from tests.jaxvae.wan.conftest import their_decode, their_encode

LIMIT = 2e-5  # relative to the largest value
TILES = (16, 16, 8, 12)
"""Smallest height and width of a tile, and strides."""

slow = pytest.mark.slow


def both(bridge, wan, tile=None, slicing=False):
    ours, theirs = bridge.clone(wan.ours), copy.deepcopy(wan.theirs)
    for vae in (ours, theirs):
        if tile:
            vae.enable_tiling(*tile)
        if slicing:
            vae.enable_slicing()
    return ours, theirs


def agree(bridge, wan, shape, limit=LIMIT, **modes):
    """Encode noise and decode what the reference made of it; return what the port gives."""
    ours, theirs = both(bridge, wan, **modes)
    x = bridge.normal(*shape, 3, seed=shape[1])
    moments = their_encode(theirs, x)
    found = ours.encode(x)
    assert bridge.error(found.parameters, moments) < limit
    z = moments[..., : moments.shape[-1] // 2]
    video, wanted = ours.decode(z), their_decode(theirs, z)
    assert bridge.error(video, wanted) < limit
    assert np.mean(np.abs(wanted) < 1) > 0.5
    return x, z, found.parameters, video


@pytest.mark.parametrize(
    "shape",
    [
        (1, 9, 16, 16),
        (2, 1, 16, 16),
        pytest.param((2, 8, 16, 24), marks=slow),  # three frames at the end are left out
        pytest.param((1, 17, 24, 16), marks=slow),
        *(pytest.param((1, frames, 16, 16), marks=slow) for frames in (2, 5, 6, 7, 13)),
    ],
)
def test_frames_and_batches(bridge, wan, shape):
    compare(bridge, wan, shape)


@pytest.mark.parametrize("shape", [(1, 5, 16, 16)])
def test_residual_blocks_and_patches(bridge, wan22, shape):
    compare(bridge, wan22, shape)


def compare(bridge, wan, shape):
    _, z, _, video = agree(bridge, wan, shape)
    levels = wan.ours.config.time_levels
    assert z.shape[1] == 1 + (shape[1] - 1) // 4 * (4 >> levels)
    assert video.shape[1] == wan.ours.config.video_frames(z.shape[1])
    assert video.shape[1] == shape[1] - (shape[1] - 1) % 4


@pytest.mark.parametrize(
    "size", [(9, 14), *(pytest.param(size, marks=slow) for size in [(4, 5), (19, 17), (23, 6)])]
)
def test_odd_sizes(bridge, wan21, size):
    _, z, _, _ = agree(bridge, wan21, (2, 5, *size))
    assert z.shape[2:4] == (size[0] // 4, size[1] // 4)


def test_sizes_that_the_source_refuses(bridge, wan22):
    for size, message in (((16, 17), "patch_size"), ((20, 16), "AvgDown3D")):
        x = bridge.normal(1, 1, *size, 3)
        with pytest.raises((ValueError, RuntimeError)):
            their_encode(wan22.theirs, x)
        with pytest.raises(ValueError, match=message):
            wan22.ours.encode(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "modes"),
    [
        ((1, 5, 16, 20), {"tile": (16, 16, 16, 8)}),
        ((1, 5, 24, 20), {"tile": TILES}),
        ((2, 5, 16, 16), {"slicing": True}),
        ((2, 5, 32, 24), {"tile": TILES, "slicing": True}),
        ((1, 9, 40, 16), {"tile": TILES}),
        ((1, 5, 48, 40), {"tile": (24, 16, 20, 10)}),  # cut at the end
        ((1, 1, 64, 64), {"tile": (32, 32, 24, 24)}),
    ],
)
def test_tiles_and_slices(bridge, wan, shape, modes):
    if wan.ours.config.is_residual:  # every side of a tile is halved
        shape = (*shape[:2], *(8 * (side // 4) for side in shape[2:]))
        modes = modes | (
            {"tile": tuple(2 * side for side in modes["tile"])} if "tile" in modes else {}
        )
    agree(bridge, wan, shape, **modes)


@pytest.mark.parametrize("tile", [None, pytest.param((16, 16, 8, 8), marks=slow)])
def test_streams_are_the_one_shot_calls(bridge, wan, tile):
    ours, _ = both(bridge, wan, tile)
    x = bridge.normal(1, 11, 16, 16 if tile is None else 24, 3)
    posterior = ours.encode(x)
    parts = list(ours.encode_stream((x[:, :3], x[:, 3:10], x[:, 10:]), 11))
    assert len(parts) == 3
    assert np.array_equal(np.concatenate(parts, 1), posterior.parameters)
    parts = list(ours.decode_stream(posterior.mode()))
    assert {part.shape[1] for part in parts[1:]} == {2**ours.config.time_levels}
    assert np.array_equal(np.concatenate(parts, 1), ours.decode(posterior.mode()))
    with pytest.raises(ValueError, match="expected 12 frames in all, found 11"):
        list(ours.encode_stream([x], 12))
    with pytest.raises(ValueError, match="expected 9 frames in all, found at least 11"):
        list(ours.encode_stream([x], 9))


@slow
def test_inside_a_callers_jit(bridge, wan):
    x = bridge.normal(2, 10, 16, 16, 3)
    for modes in ({}, {"slicing": True}, {"tile": (16, 8, 8, 8)}):
        ours, _ = both(bridge, wan, **modes)
        found = jax.jit(lambda vae, x: vae(x))(ours, x)
        assert bridge.error(found, ours(x)) < LIMIT


def test_exported_for_any_batch(bridge, wan21):
    decode, encode = wan21.ours.decode, lambda x: wan21.ours.encode(x).parameters
    for call, given in ((decode, (2, 2, 4, 4, 2)), (encode, (2, 5, 16, 16, 3))):
        x = bridge.normal(*given)
        shape = (*jax.export.symbolic_shape("b"), *x.shape[1:])
        exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct(shape, x.dtype))
        assert bridge.error(exported.call(x), np.asarray(call(x))) < 1e-6


@slow
def test_layer_by_layer(bridge, wan):
    x = bridge.normal(1, 5, 16, 16, 3)
    assert bridge.error(wan.ours(x, compiled=False), wan.ours(x)) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.08), ("float64", 5e-7)])
def test_number_formats(bridge, wan, dtype, limit):
    """float64 is rounded to float32 where the source does it, before every upsampling."""
    import torch

    with jax.enable_x64(dtype == "float64"):
        theirs = copy.deepcopy(wan.theirs).to(getattr(torch, dtype))
        ours = AutoencoderKLWan.from_torch_state(
            wan.ours.config, bridge.state(wan.theirs), dtype=dtype
        )
        x = bridge.normal(1, 5, 16, 16, 3)
        first = bridge.first(x).to(theirs.dtype)
        wanted = theirs.encode(first).latent_dist.parameters
        found = ours.encode(x).parameters
        assert found.dtype == jnp.dtype(dtype)
        assert bridge.error(found, bridge.last(wanted.double())) < limit
        z = wanted[:, : wanted.shape[1] // 2]
        video = ours.decode(jnp.asarray(bridge.last(z.double()), dtype))
        assert video.dtype == jnp.dtype(dtype)
        assert bridge.error(video, bridge.last(theirs.decode(z).sample.double())) < limit
