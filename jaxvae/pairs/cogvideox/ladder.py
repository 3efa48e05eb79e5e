"""The ladder of the CogVideoX pair: configurations, rungs, and how a module is called.

Nothing here needs torch.
"""

from typing import Any

from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK, CogVideoXVAEConfig
from parity import Rung

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


def call(module: Any, inputs: Any, zq: Any = None) -> Any:
    """Call a module of either side; resnets and blocks have an unused `temb` before `zq`."""
    if zq is None:
        return module(inputs)
    spatial_norm = type(module).__name__.endswith("SpatialNorm3D")
    return module(inputs, zq) if spatial_norm else module(inputs, None, zq)
