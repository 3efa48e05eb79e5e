import dataclasses
import inspect
import json

import diffusers
import jax
import numpy as np
import pytest
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig, ConfigError
from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK


def test_fields_and_defaults_are_those_of_diffusers():
    parameters = inspect.signature(diffusers.AutoencoderKLCogVideoX.__init__).parameters
    theirs = {name: p.default for name, p in parameters.items() if name != "self"}
    ours = {f.name: f.default for f in dataclasses.fields(CogVideoXVAEConfig)}
    assert list(ours) == list(theirs)
    assert ours == theirs


def test_reads_what_diffusers_saves(bridge, tmp_path):
    diffusers.AutoencoderKLCogVideoX(**bridge.small).save_config(tmp_path)
    config = CogVideoXVAEConfig.from_json(tmp_path / "config.json")
    assert config == CogVideoXVAEConfig(**bridge.small)
    assert hash(config) == hash(CogVideoXVAEConfig(**bridge.small))


def test_round_trip_through_json():
    config = CogVideoXVAEConfig(latents_mean=(0.5, 1), norm_eps=1e-5)
    assert CogVideoXVAEConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5.9, 6, 8])
def test_time_levels_round_down_like_diffusers(ratio):
    config = CogVideoXVAEConfig(temporal_compression_ratio=ratio)
    assert config.time_levels == int(np.log2(ratio))


@pytest.mark.parametrize("frames", [1, 8, 9, 33, 49])
def test_latent_frames_are_those_of_the_chunks(frames):
    """Chunks of 8 frames cannot be halved four times: each gives one latent frame."""
    fields = {"block_out_channels": (4,) * 5, "norm_num_groups": 2, "layers_per_block": 1}
    kinds = {"down_block_types": (DOWN_BLOCK,) * 5, "up_block_types": (UP_BLOCK,) * 5}
    config = CogVideoXVAEConfig(**fields, **kinds, temporal_compression_ratio=16)
    vae = AutoencoderKLCogVideoX(config, rngs=nnx.Rngs(0))
    shape = jax.ShapeDtypeStruct((1, frames, 32, 32, 3), "float32")
    latent = jax.eval_shape(lambda x: vae.encode(x).mode(), shape)
    assert latent.shape[1] == config.latent_frames(frames)
    assert jax.eval_shape(vae.decode, latent).shape[1] == config.video_frames(latent.shape[1])


def test_private_keys_are_accepted_and_unknown_ones_named():
    keys = {"_class_name": "AutoencoderKLCogVideoX", "_diffusers_version": "0", "_x": 1}
    assert CogVideoXVAEConfig.from_dict(keys) == CogVideoXVAEConfig()
    with pytest.warns(UserWarning, match=r"dropout, pad_mode: not a field"):
        found = CogVideoXVAEConfig.from_dict({"pad_mode": "first", "dropout": 0})
    assert found == CogVideoXVAEConfig()


def test_another_class_is_refused_with_both_names():
    with pytest.raises(ConfigError, match="'AutoencoderKLCogVideoX', found 'AutoencoderKL'"):
        CogVideoXVAEConfig.from_dict({"_class_name": "AutoencoderKL"})


@pytest.mark.parametrize("name", ["SiLU", "swish", "MISH", "gelu", "relu"])
def test_activation_names_in_any_case(name):
    diffusers.models.activations.get_activation(name)
    assert CogVideoXVAEConfig(act_fn=name).act_fn == name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("in_channels", "3", r"in_channels: expected a positive integer, found '3' \(str\)"),
        ("layers_per_block", 0, "layers_per_block: expected a positive integer, found 0"),
        ("latent_channels", True, "latent_channels: expected a positive integer, found True"),
        ("block_out_channels", 128, "block_out_channels: expected a list, found 128"),
        ("block_out_channels", (128, 256, 256, 2.5), r"block_out_channels\[3\]: expected a pos"),
        ("block_out_channels", (128, 256, 256, 500), r"block_out_channels\[3\]: .*multiple of"),
        ("block_out_channels", (128, 256), "down_block_types: expected 2 entries.*found 4"),
        ("block_out_channels", (), "block_out_channels: expected at least one"),
        ("down_block_types", ("CogVideoXDownBlock3D",) * 3, "down_block_types: expected 4 ent"),
        ("up_block_types", ("UpBlock",) * 4, r"up_block_types\[0\]: expected 'CogVideoXUpBlock3D"),
        ("act_fn", "tanh", "act_fn: expected one of silu, .*found 'tanh'"),
        ("act_fn", 1, "act_fn: expected a string"),
        ("norm_eps", None, "norm_eps: expected a number, found None"),
        ("norm_eps", 0, "norm_eps: expected a positive number"),
        ("temporal_compression_ratio", 0, "temporal_compression_ratio: expected a finite number"),
        ("temporal_compression_ratio", float("nan"), "temporal_compression_ratio: expected a num"),
        ("latents_mean", (1, "a"), r"latents_mean\[1\]: expected a number, found 'a'"),
        ("use_quant_conv", 1, "use_quant_conv: expected true or false"),
        ("force_upcast", "yes", "force_upcast: expected a number"),
    ],
)
def test_wrong_values_are_named(tmp_path, field, value, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        CogVideoXVAEConfig(**{field: value})
    path = tmp_path / "config.json"
    path.write_text(json.dumps({field: value}))
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        CogVideoXVAEConfig.from_json(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "expected JSON"), ("[]", "expected a JSON object, found list")],
)
def test_broken_files_are_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        CogVideoXVAEConfig.from_json(path)
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        CogVideoXVAEConfig.from_json(path)
