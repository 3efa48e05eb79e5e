"""The configuration of the model: every field of diffusers' `config.json`, checked.

Source: diffusers 0.42.1, the arguments of `AutoencoderKL` (`register_to_config`).
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxvae.models.config import VAEConfig, check_blocks, check_factors, expect

DOWN_BLOCKS = ("DownEncoderBlock2D", "AttnDownEncoderBlock2D")
UP_BLOCKS = ("UpDecoderBlock2D", "AttnUpDecoderBlock2D")


@dataclass(frozen=True)
class KLVAEConfig(VAEConfig):
    """Fields and defaults as in diffusers; sequences are tuples, so a config is hashable.

    `scaling_factor`, `shift_factor`, `latents_mean`, `latents_std` and `force_upcast` are kept for
    pipelines: encode and decode never apply them. Of diffusers' many kinds of blocks all others
    fail in this model: they take skip connections, or return them.

    Source: diffusers 0.42.1, `AutoencoderKL`.
    """

    class_name: ClassVar[str] = "AutoencoderKL"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "down_block_types": DOWN_BLOCKS,
        "up_block_types": UP_BLOCKS,
    }

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = DOWN_BLOCKS[:1]
    up_block_types: tuple[str, ...] = UP_BLOCKS[:1]
    block_out_channels: tuple[int, ...] = (64,)
    layers_per_block: int = 1
    act_fn: str = "silu"
    latent_channels: int = 4
    norm_num_groups: int = 32
    sample_size: int | tuple[int, ...] = 32
    scaling_factor: float = 0.18215
    shift_factor: float | None = None
    latents_mean: tuple[float, ...] | None = None
    latents_std: tuple[float, ...] | None = None
    force_upcast: bool = True
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True

    @property
    def spatial_ratio(self) -> int:
        """Height of an image by height of its latent, and width by width."""
        return 1 << (len(self.block_out_channels) - 1)

    def video_frames(self, latent_frames: int) -> int:
        """Return the number of frames of so many latents: each frame is an image by itself."""
        return latent_frames

    def latent_frames(self, frames: int) -> int:
        """Return the number of latents of so many frames."""
        return frames

    def _check_values(self) -> None:
        check_blocks(self)
        check_factors(self)
        sizes = self.sample_size
        if isinstance(sizes, tuple):
            expect(len(sizes) == 2, "sample_size", "a size, or height and width", sizes)
