"""The configuration of the model: every field of diffusers' `config.json`, checked.

Source: diffusers 0.42.1, the arguments of `AutoencoderKLCogVideoX` (`register_to_config`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxvae.models.config import VAEConfig, check_blocks, check_factors, expect
from jaxvae.run.chunks import chunk_bounds

DOWN_BLOCK = "CogVideoXDownBlock3D"
UP_BLOCK = "CogVideoXUpBlock3D"

_MOST_COMPRESSION = 1024
"""More than any such model has: what is beyond would be built for hours."""


@dataclass(frozen=True)
class CogVideoXVAEConfig(VAEConfig):
    """Fields and defaults as in diffusers; sequences are tuples, so a config is hashable.

    `scaling_factor`, `shift_factor`, `latents_mean`, `latents_std`, `force_upcast` and
    `invert_scale_latents` are kept for pipelines: encode and decode never apply them.

    Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
    """

    class_name: ClassVar[str] = "AutoencoderKLCogVideoX"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "down_block_types": (DOWN_BLOCK,),
        "up_block_types": (UP_BLOCK,),
    }

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = (DOWN_BLOCK,) * 4
    up_block_types: tuple[str, ...] = (UP_BLOCK,) * 4
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    latent_channels: int = 16
    layers_per_block: int = 3
    act_fn: str = "silu"
    norm_eps: float = 1e-6
    norm_num_groups: int = 32
    temporal_compression_ratio: float = 4
    sample_height: int = 480
    sample_width: int = 720
    scaling_factor: float = 1.15258426
    shift_factor: float | None = None
    latents_mean: tuple[float, ...] | None = None
    latents_std: tuple[float, ...] | None = None
    force_upcast: float = True
    use_quant_conv: bool = False
    use_post_quant_conv: bool = False
    invert_scale_latents: bool = False

    @property
    def spatial_ratio(self) -> int:
        """Height of a video by height of its latent, and width by width."""
        return 1 << (len(self.block_out_channels) - 1)

    def video_frames(self, latent_frames: int) -> int:
        """Return the number of frames that so many latent frames are decoded to, in pairs."""
        ratio, odd = 1 << self.time_levels, latent_frames % 2
        return ratio * (latent_frames - odd) + odd

    def latent_frames(self, frames: int) -> int:
        """Return the number of latent frames that so many frames are encoded to, in eights."""
        chunks = (end - start for start, end in chunk_bounds(frames, 8))
        return sum(-(-chunk // (1 << self.time_levels)) for chunk in chunks)

    @property
    def time_levels(self) -> int:
        """The number of blocks that halve (double) the frames: `int(log2(ratio))`, as diffusers.

        A ratio that is no power of two is rounded down: 6 gives 2 levels, like 4.
        """
        return int(math.log2(self.temporal_compression_ratio))

    def _check_values(self) -> None:
        check_blocks(self)
        ratio = self.temporal_compression_ratio
        expect(ratio >= 1, "temporal_compression_ratio", "a finite number of at least 1", ratio)
        most = f"at most {_MOST_COMPRESSION}"
        expect(ratio <= _MOST_COMPRESSION, "temporal_compression_ratio", most, ratio)
        expect(self.norm_eps > 0, "norm_eps", "a positive number", self.norm_eps)
        check_factors(self)
