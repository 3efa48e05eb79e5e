"""The ladder of the Wan pair: configurations, rungs, and how a module is called.

Nothing here needs torch.
"""

from typing import Any

from jaxvae.models.wan.config import WanVAEConfig
from parity import Rung

WAN22 = WanVAEConfig(
    base_dim=160,
    decoder_base_dim=256,
    z_dim=48,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
)
"""Wan 2.2's, but for the numbers by which pipelines scale its latents."""

SMALL = WanVAEConfig(
    base_dim=8,
    z_dim=4,
    dim_mult=(1, 2, 2),
    num_res_blocks=1,
    temperal_downsample=(False, True),
    scale_factor_spatial=4,
)
"""Both kinds of resampling, a shortcut, blocks that are not residual."""

SMALL22 = WanVAEConfig(
    base_dim=8,
    decoder_base_dim=12,
    z_dim=4,
    dim_mult=(1, 2, 2),
    num_res_blocks=1,
    temperal_downsample=(False, True),
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
)
"""The same with residual blocks and patches."""

CONFIGS = {"wan2.1": WanVAEConfig(), "wan2.2": WAN22, "small": SMALL, "small2.2": SMALL22}

RUNGS = (
    Rung("conv", ("WanCausalConv3d", "Conv2d"), 1e-6),
    Rung("norm", ("WanRMS_norm",), 1e-5),
    Rung("attention", ("WanAttentionBlock",), 1e-5),
    Rung("resnet", ("WanResidualBlock", "SiLU", "Dropout", "Identity"), 1e-4),
    Rung(
        "block",
        (
            "WanMidBlock",
            "WanUpBlock",
            "WanResidualDownBlock",
            "WanResidualUpBlock",
            "WanResample",
            "Sequential",
            "ZeroPad2d",
            "WanUpsample",
            "AvgDown3D",
            "DupUp3D",
        ),
        1e-3,
    ),
    Rung("encoder", ("WanEncoder3d", "WanDecoder3d"), 1e-2, free=True),
    Rung("vae", ("AutoencoderKLWan",), 1e-1, free=True),
)


def call(module: Any, *inputs: Any) -> Any:
    """Call a module of either side without caches: on a first chunk, and where it asks, it is."""
    asks = type(module).__name__.endswith(("ResidualUpBlock", "Decoder3d"))
    return module(*inputs, first_chunk=True) if asks else module(*inputs)
