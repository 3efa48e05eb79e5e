"""Every field of the configuration, through the comparison with diffusers; folders in and out."""

import dataclasses
import json
from pathlib import Path

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click import UsageError
from flax import nnx

import jaxvae
from jaxvae import AutoencoderKLWan, ConfigError, WanVAEConfig
from jaxvae.cli.options import set_tiles
from tests.jaxvae.wan.conftest import CONFIGS, their_decode, their_encode

LIMIT = 2e-5  # relative to the largest value
BASE = CONFIGS["one level"]
RESIDUAL = {**CONFIGS["2.2"], "dim_mult": [2, 2], "temperal_downsample": [True]}

# Per field: a configuration, and what is changed in it.
CHANGES = {
    "base_dim": (BASE, {"base_dim": 6}),
    "decoder_base_dim": (BASE, {"decoder_base_dim": 6}),
    "z_dim": (BASE, {"z_dim": 3}),
    "dim_mult": (BASE, {"dim_mult": [2, 1]}),
    "num_res_blocks": (BASE, {"num_res_blocks": 2}),
    "temperal_downsample": (BASE, {"temperal_downsample": [False, True]}),
    "dropout": (BASE, {"dropout": 0.5}),
    "latents_mean": (BASE, {"latents_mean": [0.5, 0.5]}),
    "latents_std": (BASE, {"latents_std": [2.0, 2.0]}),
    "is_residual": (BASE, {"is_residual": True, "dim_mult": [2, 2]}),
    "in_channels": (BASE, {"in_channels": 4}),
    "out_channels": (BASE, {"out_channels": 5}),
    "patch_size": (RESIDUAL, {"patch_size": 4, "in_channels": 48, "out_channels": 16}),
    "scale_factor_temporal": (BASE, {"scale_factor_temporal": None}),
    "scale_factor_spatial": (BASE, {"scale_factor_spatial": 2}),
}
QUICK = ("patch_size",)


def test_every_field_has_a_change():
    fields = {field.name for field in dataclasses.fields(WanVAEConfig)}
    assert fields == {*CHANGES, "attn_scales"}


def agree(bridge, ours, theirs, size):
    x = bridge.normal(1, 5, *size, ours.channels("encode"))
    # layer by layer: configurations share what is compiled
    posterior = ours.encode(x, compiled=False)
    assert bridge.error(posterior.parameters, their_encode(theirs, x)) < LIMIT
    z = np.asarray(posterior.mode())
    assert bridge.error(ours.decode(z, compiled=False), their_decode(theirs, z)) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    "field",
    [pytest.param(f, marks=[] if f in QUICK else [pytest.mark.slow]) for f in CHANGES],
)
def test_a_changed_field(bridge, field):
    base, change = CHANGES[field]
    fields = base | change
    theirs = bridge.randomise(diffusers.AutoencoderKLWan(**fields))
    config = WanVAEConfig.from_dict(fields)
    ours = AutoencoderKLWan.from_torch_state(config, bridge.state(theirs))
    agree(bridge, ours, theirs, (8, 8))


def test_defaults_are_those_of_diffusers():
    with torch.device("meta"):
        theirs = diffusers.AutoencoderKLWan().config
    assert WanVAEConfig() == WanVAEConfig.from_dict(theirs)
    ours = WanVAEConfig().to_dict()
    assert ours == {name: theirs[name] for name in ours}
    assert (ours["scale_factor_spatial"], WanVAEConfig().spatial_ratio) == (8, 8)


def test_latents_are_scaled_as_wan_pipelines_do(bridge):
    config, z = WanVAEConfig(), bridge.normal(1, 2, 3, 3, 16)
    mean, std = (np.asarray(x, "f4") for x in (config.latents_mean, config.latents_std))
    scaled = jaxvae.scale_latents(jnp.asarray(z), config)
    assert bridge.error(scaled, (z - mean) * (1 / std)) < 1e-6
    assert bridge.error(jaxvae.unscale_latents(scaled, config), z) < 1e-6


def test_attention_at_a_scale(bridge):
    """diffusers passes caches to it and fails; its encoder runs on the first chunk, without."""
    fields = {**BASE, "attn_scales": [0.5, 0.3]}
    theirs = bridge.randomise(diffusers.AutoencoderKLWan(**fields))
    config = WanVAEConfig.from_dict(fields)
    ours = AutoencoderKLWan.from_torch_state(config, bridge.state(theirs))
    kinds = [type(block).__name__ for block in ours.encoder.down_blocks]
    assert kinds == [name.replace("Wan", "") for name in _kinds(theirs.encoder.down_blocks)]
    assert "AttentionBlock" in kinds
    x = bridge.normal(1, 1, 8, 8, 3)
    with pytest.raises(TypeError, match="feat_cache"):
        theirs.encode(bridge.first(x))
    wanted = bridge.last(theirs.quant_conv(theirs.encoder(bridge.first(x))))
    assert bridge.error(ours.encode(x, compiled=False).parameters, wanted) < LIMIT


def _kinds(modules):
    return [type(module).__name__ for module in modules]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim_mult": []}, "dim_mult: expected at least one block"),
        ({"temperal_downsample": []}, "temperal_downsample: expected 1 entries or more"),
        ({"temperal_downsample": [1]}, r"temperal_downsample\[0\]: expected true or false"),
        ({"patch_size": 2}, "in_channels: expected a multiple of 4, the pixels of a patch"),
        ({"dropout": 1.0}, "dropout: expected a number from 0 to below 1"),
        ({"num_res_blocks": 1000}, "num_res_blocks: expected at most 16"),
        ({"base_dim": "8"}, "base_dim: expected a positive integer"),
        ({"_class_name": "AutoencoderKLLTXVideo"}, "_class_name: expected 'AutoencoderKLWan'"),
    ],
)
def test_a_wrong_configuration(change, message):
    with pytest.raises(ConfigError, match=message):
        WanVAEConfig.from_dict(BASE | change)


def test_channels_that_do_not_divide_are_an_error_of_the_config():
    fields = CONFIGS["2.2"] | {"dim_mult": [1, 1, 3]}
    with pytest.raises(ConfigError, match=r"AvgDown3D: .* channels"):
        AutoencoderKLWan.without_values(WanVAEConfig.from_dict(fields))


@pytest.mark.parametrize("ratio", [None, 8])
def test_tiles_of_the_command_line_come_back_in_their_size(ratio):
    config = WanVAEConfig.from_dict(BASE | {"scale_factor_spatial": ratio})
    with pytest.raises(UsageError, match="scale_factor_spatial is"):
        set_tiles(AutoencoderKLWan.without_values(config), (16, 16))


def test_tiles_need_a_ratio(bridge):
    for change in ({"scale_factor_spatial": None}, {"scale_factor_spatial": 3, **_PATCHES}):
        config = WanVAEConfig.from_dict(BASE | change)
        vae = AutoencoderKLWan.without_values(config)
        vae.enable_tiling(8, 8, 4, 4)
        with pytest.raises(ValueError, match="expected a scale_factor_spatial in the config"):
            vae.latent_windows((1, 1, 16, 16, 2))


def test_what_is_published_has_a_field_more():
    with pytest.warns(UserWarning, match="clip_output: not a field of AutoencoderKLWan; ignored"):
        found = WanVAEConfig.from_dict(BASE | {"clip_output": False})
    assert found == WanVAEConfig.from_dict(BASE)


def test_frames_are_counted_as_the_blocks_do():
    """Of more entries than blocks the encoder reads the first ones, the decoder the last."""
    fields = {"dim_mult": [1, 2], "temperal_downsample": [False, True, True]}
    vae = AutoencoderKLWan(WanVAEConfig.from_dict(BASE | fields), rngs=nnx.Rngs(0))
    _same_frames(vae, 9)


def _same_frames(vae, frames):
    shape = jax.ShapeDtypeStruct((1, frames, 16, 16, 3), "float32")
    latent = jax.eval_shape(lambda x: vae.encode(x).mode(), shape)
    assert latent.shape[1] == vae.config.latent_frames(frames)
    video = jax.eval_shape(vae.decode, latent)
    assert video.shape[1] == vae.config.video_frames(latent.shape[1])


_PATCHES = {"patch_size": 2, "in_channels": 12, "out_channels": 12}


def test_folders_are_those_of_diffusers(wan22, tmp_path):
    wan22.theirs.save_pretrained(tmp_path / "theirs")
    wan22.ours.save_pretrained(tmp_path / "ours")
    ours, theirs = (
        {path.name: path.read_bytes() for path in Path(tmp_path / side).iterdir()}
        for side in ("ours", "theirs")
    )
    assert ours == theirs
    loaded = jaxvae.from_pretrained(tmp_path / "theirs")
    assert type(loaded) is AutoencoderKLWan
    assert loaded.config == wan22.ours.config


@pytest.mark.slow
def test_the_folder_of_qwen_image(bridge, tmp_path):
    """diffusers has the code twice: what it computes is the same, the names of fields are not."""
    fields = {k: v for k, v in BASE.items() if k != "scale_factor_spatial"}
    theirs = bridge.randomise(diffusers.AutoencoderKLQwenImage(**fields, input_channels=4))
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["input_channels"] == 4
    ours = jaxvae.from_pretrained(tmp_path)
    assert type(ours) is AutoencoderKLWan
    assert (ours.config.in_channels, ours.config.out_channels) == (4, 4)
    agree(bridge, ours, theirs, (8, 8))
    ours.save_pretrained(tmp_path / "wan")  # which diffusers reads as the other class
    wan = diffusers.AutoencoderKLWan.from_pretrained(tmp_path / "wan", low_cpu_mem_usage=False)
    z = bridge.normal(1, 2, 5, 9, 2)
    for vae in (wan, theirs):
        vae.enable_tiling(8, 8, 6, 6)
    assert torch.equal(wan.decode(bridge.first(z)).sample, theirs.decode(bridge.first(z)).sample)
