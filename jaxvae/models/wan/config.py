"""The configuration of the model: every field of diffusers' `config.json`, checked.

Source: diffusers 0.42.1, the arguments of `AutoencoderKLWan` (`register_to_config`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from jaxvae.models.config import MOST_BLOCKS, MOST_CHANNELS, VAEConfig, expect

QWEN_IMAGE = "AutoencoderKLQwenImage"
"""The class of diffusers' that computes the same, without residual blocks and patches."""

LATENTS_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
LATENTS_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)


@dataclass(frozen=True)
class WanVAEConfig(VAEConfig):
    """Fields and defaults as in diffusers; sequences are tuples, so a config is hashable.

    `latents_mean`, `latents_std` and `scale_factor_temporal` are kept for pipelines: encode and
    decode never apply them. `scale_factor_spatial` decides on tiles alone. `in_channels` and
    `out_channels` are those of patches: 12 for a video of 3 channels and a `patch_size` of 2.

    Source: diffusers 0.42.1, `AutoencoderKLWan`.
    """

    class_name: ClassVar[str] = "AutoencoderKLWan"
    scaling_factor: ClassVar[float] = 1.0
    shift_factor: ClassVar[float | None] = None

    base_dim: int = 96
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    attn_scales: tuple[float, ...] = ()
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    dropout: float = 0.0
    latents_mean: tuple[float, ...] = LATENTS_MEAN
    latents_std: tuple[float, ...] = LATENTS_STD
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None
    scale_factor_temporal: int | None = 4
    scale_factor_spatial: int | None = 8

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Build from the content of a `config.json`, also of `AutoencoderKLQwenImage`."""
        if d.get("_class_name") == QWEN_IMAGE:
            d = {**d, "_class_name": cls.class_name}
            d["in_channels"] = d["out_channels"] = d.pop("input_channels", 3)
            flags = d.get("temperal_downsample", (0, 0, 0))
            if isinstance(flags, list | tuple):
                d["scale_factor_spatial"] = 2 ** min(len(flags), MOST_BLOCKS)
        return super().from_dict(d)

    @property
    def latent_channels(self) -> int:
        """Channels of the latent, under the name that other autoencoders have for it."""
        return self.z_dim

    @property
    def patch(self) -> int:
        """Height and width of a patch."""
        return self.patch_size or 1

    @property
    def halvings(self) -> int:
        """The number of blocks that halve height and width."""
        return len(self.dim_mult) - 1

    @property
    def spatial_ratio(self) -> int:
        """Height of a video by height of its latent, and width by width."""
        return self.patch << self.halvings

    @property
    def time_levels(self) -> int:
        """The number of blocks that halve (double) the frames."""
        return sum(self.temperal_downsample[: self.halvings])

    def latent_frames(self, frames: int) -> int:
        """Return the number of latent frames that so many frames are encoded to."""
        return 1 + (((frames - 1) // 4 * 4) >> self.time_levels)

    def video_frames(self, latent_frames: int) -> int:
        """Return the number of frames that so many latent frames are decoded to."""
        # quirk of the source: of more entries than blocks the decoder reads those at the end
        levels = sum(self.temperal_downsample[::-1][: self.halvings])
        return 1 + ((latent_frames - 1) << levels)

    def _check_values(self) -> None:
        blocks = len(self.dim_mult)
        expect(blocks > 0, "dim_mult", "at least one block", blocks)
        widest = max(self.base_dim, self.decoder_base_dim or 0) * max(self.dim_mult)
        most = f"at most {MOST_CHANNELS} channels"
        expect(widest <= MOST_CHANNELS, "dim_mult", most, widest)
        flags = len(self.temperal_downsample)
        wanted = f"{blocks - 1} entries or more, one between two blocks of dim_mult"
        expect(flags >= blocks - 1, "temperal_downsample", wanted, flags)
        pixels = self.patch**2
        for name in ("in_channels", "out_channels"):
            channels = getattr(self, name)
            wanted = f"a multiple of {pixels}, the pixels of a patch"
            expect(channels % pixels == 0, name, wanted, channels)
        rate = self.dropout
        expect(0 <= rate < 1, "dropout", "a number from 0 to below 1", rate)
