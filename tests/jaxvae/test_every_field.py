"""Every field of the configuration changed once, through the same comparison with diffusers.

A field that diffusers ignores must be ignored here, to the last bit; one that it reads must change
the same of encode and decode. Both run layer by layer: configurations share what is compiled.
"""

import dataclasses

import numpy as np
import pytest
from diffusers.models.activations import ACT2CLS

from jaxvae import CogVideoXVAEConfig
from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK
from jaxvae.models.config import ACTIVATIONS

LIMIT = 2e-5  # relative to the largest value


def depth(blocks):
    return {"down_block_types": (DOWN_BLOCK,) * blocks, "up_block_types": (UP_BLOCK,) * blocks}


BASE = {
    **depth(2),
    "block_out_channels": (4, 8),
    "latent_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 2,
}
EVERY_LEVEL = {**depth(4), "block_out_channels": (4, 4, 4, 4)}  # three that may compress time

# Per field: the changes, and what of encode and decode they change.
BOTH, ENCODE, DECODE, NOTHING = {"encode", "decode"}, {"encode"}, {"decode"}, set()
CHANGES = {
    "in_channels": ({"in_channels": 4}, BOTH),  # the decoder's weights are drawn after it
    "out_channels": ({"out_channels": 5}, DECODE),
    "down_block_types": ({**depth(3), "block_out_channels": (4, 8, 8)}, BOTH),
    "up_block_types": ({**depth(1), "block_out_channels": (4,)}, BOTH),
    "block_out_channels": ({"block_out_channels": (8, 4)}, BOTH),
    "latent_channels": ({"latent_channels": 6}, BOTH),
    "layers_per_block": ({"layers_per_block": 2}, BOTH),
    "act_fn": ({"act_fn": "mish"}, BOTH),
    "norm_eps": ({"norm_eps": 0.1}, ENCODE),
    "norm_num_groups": ({"norm_num_groups": 1}, BOTH),
    "temporal_compression_ratio": ({"temporal_compression_ratio": 1}, BOTH),
    "sample_height": ({"sample_height": 16}, NOTHING),
    "sample_width": ({"sample_width": 16}, NOTHING),
    "scaling_factor": ({"scaling_factor": 0.7}, NOTHING),
    "shift_factor": ({"shift_factor": 0.3}, NOTHING),
    "latents_mean": ({"latents_mean": (0.5,) * 4}, NOTHING),
    "latents_std": ({"latents_std": (2.0,) * 4}, NOTHING),
    "force_upcast": ({"force_upcast": False}, NOTHING),
    "use_quant_conv": ({"use_quant_conv": True, "out_channels": 4}, BOTH),
    "use_post_quant_conv": ({"use_post_quant_conv": True, "out_channels": 4}, DECODE),
    "invert_scale_latents": ({"invert_scale_latents": True}, NOTHING),
}


def inputs(bridge, config):
    # Odd sizes, two chunks; the first channels are the same for every configuration.
    x = bridge.normal(1, 5, 9, 11, 8)[..., : config.in_channels]
    return x, bridge.normal(1, 5, 5, 4, 8, seed=1)[..., : config.latent_channels]


def run(bridge, pair):
    """Return what both sides encode and decode, after comparing them."""
    x, z = inputs(bridge, pair.ours.config)
    for side in (pair.ours, pair.theirs):
        side.num_sample_frames_batch_size = 2
    moments = pair.theirs.encode(bridge.first(x)).latent_dist.parameters
    theirs = {
        "encode": bridge.last(moments),
        "decode": bridge.last(pair.theirs.decode(bridge.first(z)).sample),
    }
    ours = {
        "encode": np.asarray(pair.ours.encode(x, compiled=False).parameters),
        "decode": np.asarray(pair.ours.decode(z, compiled=False)),
    }
    for method, value in ours.items():
        assert bridge.error(value, theirs[method]) < LIMIT, method
    return ours, theirs


@pytest.fixture(scope="module")
def base(bridge, make_pair):
    return run(bridge, make_pair(**BASE))


def test_no_field_is_forgotten():
    assert list(CHANGES) == [field.name for field in dataclasses.fields(CogVideoXVAEConfig)]
    defaults = dataclasses.asdict(CogVideoXVAEConfig()) | BASE
    for name, (changes, _) in CHANGES.items():
        assert changes[name] != defaults[name]


# Every layer of these has another shape, and is compiled anew; the small model is such another.
SHAPES = ("down_block_types", "block_out_channels", "norm_num_groups", "layers_per_block")


@pytest.mark.slow
@pytest.mark.parametrize(
    "field",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SHAPES else ())
        for name, (_, changed) in CHANGES.items()
        if changed
    ],
)
def test_field_with_effect(bridge, make_pair, base, field):
    changes, expected = CHANGES[field]
    for after, before in zip(run(bridge, make_pair(**BASE | changes)), base, strict=True):
        changed = {name for name in after if not np.array_equal(after[name], before[name])}
        assert changed == expected


@pytest.mark.slow
def test_fields_without_effect(bridge, make_pair, base):
    changes = dict(BASE)
    for change, changed in CHANGES.values():
        changes |= {} if changed else change
    for after, before in zip(run(bridge, make_pair(**changes)), base, strict=True):
        assert all(np.array_equal(after[name], before[name]) for name in BOTH)


@pytest.mark.slow
@pytest.mark.parametrize("name", ACT2CLS)
def test_activation(bridge, make_pair, base, name):
    ours, _ = run(bridge, make_pair(**BASE | {"act_fn": name}))
    assert np.array_equal(ours["encode"], base[0]["encode"]) == (name in ("silu", "swish"))


def test_the_activations_are_those_of_diffusers():
    assert set(ACTIVATIONS) == set(ACT2CLS)


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "frames"), [(1, 9), (2, 5), (4, 3), (8, 2)])
def test_temporal_ratio(bridge, make_pair, ratio, frames):
    pair = make_pair(**BASE | EVERY_LEVEL | {"temporal_compression_ratio": ratio})
    x = bridge.normal(1, 9, 8, 9, 3)
    moments = pair.theirs.encode(bridge.first(x)).latent_dist.parameters
    ours = pair.ours.encode(x, compiled=False).parameters
    assert ours.shape == (1, frames, 1, 1, 8)
    assert bridge.error(ours, bridge.last(moments)) < LIMIT
    z = bridge.normal(1, 3, 2, 1, 4)
    video = pair.ours.decode(z, compiled=False)
    assert video.shape == (1, 1 + 2 * ratio, 16, 8, 3)
    assert bridge.error(video, bridge.last(pair.theirs.decode(bridge.first(z)).sample)) < LIMIT
