"""The model of images against diffusers, over configurations, sizes, batches, tiles and dtypes."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from jaxvae import AutoencoderKL
from tests.jaxvae.kl.conftest import blocks
from tests.jaxvae.test_autoencoder import _products

LIMIT = 2e-5  # relative to the largest value
AS_TORCH = 1.1  # times as far from float64 as PyTorch's own result


def run(vae, direction, x):
    output = getattr(vae, direction)(x)
    return np.asarray(getattr(output, "parameters", output))


def reference(bridge, vae, direction, x):
    output = getattr(vae, direction)(x, return_dict=False)[0]
    return bridge.last(getattr(output, "parameters", output).double())


def compare(bridge, pair, direction, shape, tile=None, slicing=False):
    """The whole call against diffusers; returns the port and what it made of what."""
    ours, theirs = bridge.clone(pair.ours), bridge.clone(pair.theirs)
    for vae in (ours, theirs):
        if tile:
            vae.enable_tiling()
            vae.tile_sample_min_size, vae.tile_latent_min_size, vae.tile_overlap_factor = tile
        if slicing:
            vae.enable_slicing()
    x = bridge.normal(*shape)
    output = run(ours, direction, x)
    assert bridge.error(output, reference(bridge, theirs, direction, bridge.first(x))) < LIMIT
    return ours, x, output


TILE = (16, 4, 0.25)  # steps of 12 pixels and of 3 latents: 3x2 tiles, the last ones smaller


def test_odd_sizes_and_a_batch(bridge, kl):
    ours, x, moments = compare(bridge, kl, "encode", (2, 23, 19, 3))
    assert moments.shape == (2, 5, 4, 8)
    whole = bridge.last(kl.theirs(bridge.first(x)).sample)
    assert bridge.error(ours(x), whole) < LIMIT


@pytest.mark.slow
def test_tiles_and_slices(bridge, kl):
    ours, x, moments = compare(bridge, kl, "encode", (2, 29, 19, 3), TILE)
    windows = ours.sample_windows((2, 1, 29, 19, 3))
    assert [len(axis.tiles) for axis in (windows.rows, windows.columns)] == [3, 2]
    ours.enable_slicing()
    assert bridge.error(run(ours, "encode", x), moments) < 5e-6
    ours.disable_slicing()
    ours.disable_tiling()
    assert bridge.error(run(ours, "encode", x), moments) > 1e-3  # another function


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_bfloat16_is_as_near_to_float64_as_in_pytorch(bridge, kl, direction):
    theirs = bridge.clone(kl.theirs).bfloat16()
    state = bridge.state(copy.deepcopy(theirs).float())
    ours = AutoencoderKL.from_torch_state(kl.ours.config, state, jnp.bfloat16)
    shape = {"encode": (2, 47, 38, 3), "decode": (2, 11, 9, 4)}[direction]
    x = np.asarray(jnp.asarray(bridge.normal(*shape), jnp.bfloat16), np.float32)
    output = run(ours, direction, x)
    assert output.dtype == jnp.bfloat16
    given = bridge.first(x)
    exact = reference(bridge, copy.deepcopy(theirs).double(), direction, given.double())
    off = np.asarray(output, np.float64) - exact
    torchs = reference(bridge, theirs, direction, given.bfloat16()) - exact
    assert np.sqrt(np.mean(off**2) / np.mean(torchs**2)) < AS_TORCH


@pytest.mark.slow
def test_float64(bridge, kl):
    theirs = bridge.clone(kl.theirs).double()
    with jax.enable_x64(True):
        ours = AutoencoderKL.from_torch_state(kl.ours.config, bridge.state(theirs), jnp.float64)
        for direction, shape in {"encode": (1, 23, 19, 3), "decode": (1, 5, 4, 4)}.items():
            x = bridge.normal(*shape)
            exact = reference(bridge, theirs, direction, bridge.first(x).double())
            assert bridge.error(run(ours, direction, x), exact) < 1e-13


def products(module, x):
    traced = jax.make_jaxpr(lambda x: module(x))(x)  # kept by the function, hence a new one
    return len(list(_products(traced.jaxpr)))


@pytest.mark.slow
def test_fused_projections(bridge, kl):
    ours, theirs = bridge.clone(kl.ours), bridge.clone(kl.theirs)
    x = bridge.normal(1, 16, 8, 16)
    attention = theirs.encoder.mid_block.attentions[0]
    fused = ours.encoder.mid_block.attentions[0]
    assert products(fused, x) == 6
    for vae in (ours, theirs):
        vae.fuse_qkv_projections()
    assert products(fused, x) == 4
    assert bridge.error(fused(x), bridge.last(attention(bridge.first(x)))) < LIMIT
    ours.unfuse_qkv_projections()
    assert products(fused, x) == 6


CONFIGS = {
    "one block": blocks(8),
    "no attention": {"mid_block_add_attention": False, **blocks(8, 16)},
    "attention everywhere": blocks(8, 16, attention=(0, 1)),
    "no quant": {"use_quant_conv": False, "use_post_quant_conv": False, **blocks(8, 16)},
    "mish": {"act_fn": "Mish", "layers_per_block": 2, "latent_channels": 3, **blocks(4, 8)},
    "channels": {"in_channels": 1, "out_channels": 2, "norm_num_groups": 1, **blocks(4, 6)},
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS)
def test_configurations(bridge, make_kl, fields):
    pair = make_kl(**fields)
    config = pair.ours.config
    small = 1 << (len(config.block_out_channels) - 1)
    compare(bridge, pair, "encode", (1, 4 * small + 1, 3 * small, config.in_channels))
    compare(bridge, pair, "decode", (2, 3, 4, config.latent_channels))


@st.composite
def cases(draw):
    levels = draw(st.integers(1, 3))
    channels = [draw(st.sampled_from((4, 8))) for _ in range(levels)]
    config = {
        **blocks(*channels, attention=draw(st.sets(st.integers(0, levels - 1)))),
        "norm_num_groups": draw(st.sampled_from((1, 2, 4))),
        "act_fn": draw(st.sampled_from(("silu", "mish", "gelu", "relu"))),
        "latent_channels": draw(st.integers(2, 5)),
        "mid_block_add_attention": draw(st.booleans()),
        "use_quant_conv": draw(st.booleans()),
        "use_post_quant_conv": draw(st.booleans()),
    }
    direction = draw(st.sampled_from(("encode", "decode")))
    ratio = 1 if direction == "encode" else 1 << (levels - 1)
    image = (draw(st.integers(8, 24)) // ratio for _ in range(2))
    channels = 3 if direction == "encode" else config["latent_channels"]
    size = draw(st.sampled_from((8, 12, 16)))
    tile = (size, size >> (levels - 1), draw(st.sampled_from((0.25, 1 / 3, 0.5))))
    shape = (draw(st.integers(1, 2)), *image, channels)
    return config, direction, shape, draw(st.none() | st.just(tile)), draw(st.booleans())


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[*HealthCheck],
)
@given(case=cases())
def test_drawn_cases(bridge, make_kl, case):
    config, direction, shape, tile, slicing = case
    pair = make_kl(**config)
    if tile:
        ours = bridge.clone(pair.ours)
        ours.enable_tiling()
        ours.tile_sample_min_size, ours.tile_latent_min_size, ours.tile_overlap_factor = tile
        windows = ours.sample_windows if direction == "encode" else ours.latent_windows
        try:
            windows((shape[0], 1, *shape[1:]))
        except ValueError:
            reject()  # a tile that is too small for either side
    compare(bridge, pair, direction, shape, tile, slicing)
