"""The ladder of the CogVideoX pair: configurations, rungs, and what is called on the port.

Nothing here needs torch.
"""

from pathlib import Path
from typing import Any

import jax

from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK, CogVideoXVAEConfig
from jaxvae.models.config import ConfigError
from parity import InputError, Rung

SMALL = CogVideoXVAEConfig(
    down_block_types=(DOWN_BLOCK,) * 3,
    up_block_types=(UP_BLOCK,) * 3,
    block_out_channels=(16, 32, 32),
    latent_channels=8,
    layers_per_block=1,
    norm_num_groups=8,
)
"""Two resampling blocks that both compress time, a shortcut, four channels a group."""

CONFIGS = {"default": CogVideoXVAEConfig(), "small": SMALL}

RUNGS = (
    Rung("conv", ("CogVideoXCausalConv3d", "CogVideoXSafeConv3d", "Conv2d"), 1e-6),
    Rung("groupnorm", ("GroupNorm", "CogVideoXSpatialNorm3D"), 1e-5),
    Rung("resnet", ("CogVideoXResnetBlock3D", "SiLU", "Mish", "GELU", "ReLU", "Dropout"), 1e-4),
    Rung(
        "block",
        (
            "CogVideoXDownBlock3D",
            "CogVideoXMidBlock3D",
            "CogVideoXUpBlock3D",
            "CogVideoXDownsample3D",
            "CogVideoXUpsample3D",
        ),
        1e-3,
    ),
    Rung("encoder", ("CogVideoXEncoder3D", "CogVideoXDecoder3D"), 1e-2, free=True),
    Rung("vae", ("AutoencoderKLCogVideoX",), 1e-1, free=True),
)

UNUSED_CACHE = (
    "a kernel of size 1 in time needs no cache; PyTorch keeps its input and never reads it"
)

DECLARED = dict.fromkeys(("*.conv_y#1", "*.conv_b#1", "*#*conv_y", "*#*conv_b"), UNUSED_CACHE)

R_LIMIT = 2.0
"""On inputs of a large mean the port is at most twice as far from float64 as PyTorch."""


def read_config(config: str | None) -> CogVideoXVAEConfig:
    """A configuration by name, or from a diffusers config.json."""
    name = config or "default"
    if name in CONFIGS:
        return CONFIGS[name]
    if not Path(name).is_file():
        known = ", ".join(sorted(CONFIGS))
        raise InputError(f"no configuration {name!r}; expected {known} or a config.json file")
    try:
        return CogVideoXVAEConfig.from_json(name)
    except ConfigError as error:
        raise InputError(str(error)) from error


def encode_nnx(model: Any, x: Any) -> dict[str, Any]:
    """Mean and clamped log-variance of the port's posterior."""
    posterior = model.encode(x, compiled=False)
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decode_nnx(model: Any, z: Any) -> Any:
    """The port's video."""
    return model.decode(z, compiled=False)


def forward_nnx(model: Any, sample: Any) -> Any:
    """The port's reconstruction, layer by layer."""
    return model(sample, compiled=False)


def forward_shipped(model: Any, sample: Any) -> Any:
    """The port's reconstruction as it is shipped, its programs compiled several at a time."""
    latent = jax.eval_shape(lambda x: model.encode(x).mode(), sample)
    model.compile_ahead(video=sample.shape, latent=latent.shape)
    return model(sample)


def call(module: Any, inputs: Any, zq: Any = None) -> Any:
    """Call a module of either side; resnets and blocks have an unused `temb` before `zq`."""
    if zq is None:
        return module(inputs)
    spatial_norm = type(module).__name__.endswith("SpatialNorm3D")
    return module(inputs, zq) if spatial_norm else module(inputs, None, zq)
