"""The ladder of the pair of `AutoencoderKL`: configurations and rungs. Nothing here needs torch."""

from jaxvae.models.kl.config import DOWN_BLOCKS, UP_BLOCKS, KLVAEConfig
from parity import Rung

SD = KLVAEConfig(
    down_block_types=DOWN_BLOCKS[:1] * 4,
    up_block_types=UP_BLOCKS[:1] * 4,
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
    sample_size=512,
)
"""Stable Diffusion's."""

FLUX = KLVAEConfig(
    down_block_types=DOWN_BLOCKS[:1] * 4,
    up_block_types=UP_BLOCKS[:1] * 4,
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
    latent_channels=16,
    sample_size=1024,
    scaling_factor=0.3611,
    shift_factor=0.1159,
    use_quant_conv=False,
    use_post_quant_conv=False,
)
"""FLUX.1's."""

SMALL = KLVAEConfig(
    down_block_types=(DOWN_BLOCKS[0], DOWN_BLOCKS[1], DOWN_BLOCKS[0]),
    up_block_types=(UP_BLOCKS[0], UP_BLOCKS[1], UP_BLOCKS[0]),
    block_out_channels=(16, 32, 32),
    norm_num_groups=8,
)
"""Every kind of block, a shortcut, four channels a group."""

CONFIGS = {"sd": SD, "flux": FLUX, "small": SMALL}

RUNGS = (
    Rung("conv", ("Conv2d", "Linear"), 1e-6),
    Rung("groupnorm", ("GroupNorm",), 1e-5),
    Rung("attention", ("Attention",), 1e-5),
    Rung("resnet", ("ResnetBlock2D", "SiLU", "Mish", "GELU", "ReLU", "Dropout"), 1e-4),
    Rung("block", (*DOWN_BLOCKS, "UNetMidBlock2D", *UP_BLOCKS, "Downsample2D", "Upsample2D"), 1e-3),
    Rung("encoder", ("Encoder", "Decoder"), 1e-2, free=True),
    Rung("vae", ("AutoencoderKL",), 1e-1, free=True),
)

LAYOUT = {"*": "channels_first", "*.to_*": "as_is"}
"""Inside of attention positions lie in a row, and what is linear has channels last."""
