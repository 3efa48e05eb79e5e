"""The norm that is conditioned on the latent.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`.
"""

from typing import Any

from jaxtyping import Array, Float

from jaxvae.layers.convolution import Cache
from jaxvae.layers.norms import GroupNorm
from jaxvae.layers.resize import nearest_resize
from jaxvae.layers.rounding import multiply_add
from jaxvae.layers.scopes import Module
from jaxvae.models.cogvideox.causal_convolution import CausalConv3d


class SpatialNorm3D(Module):
    """Group normalisation whose scale and bias are predicted from the latent `zq`.

    Source: diffusers 0.42.1, `CogVideoXSpatialNorm3D`. `zq` is resized to the size of `f`. With an
    odd number of frames above one, the first frame of each is kept apart: 3 latent frames and 9
    frames of `f` pair as 1 with 1 and 2 with 8. The eps is always 1e-6.
    """

    def __init__(self, f_channels: int, zq_channels: int, groups: int = 32, **build: Any):
        self.norm_layer = GroupNorm(groups, f_channels, eps=1e-6, dtype=build["dtype"])
        self.conv_y = CausalConv3d(zq_channels, f_channels, kernel_size=1, stride=1, **build)
        self.conv_b = CausalConv3d(zq_channels, f_channels, kernel_size=1, stride=1, **build)

    def __call__(
        self,
        f: Float[Array, "b t h w c"],
        zq: Float[Array, "b tz hz wz cz"],
        conv_cache: Cache | None = None,
    ) -> tuple[Float[Array, "b t h w c"], Cache]:
        """Return the output and a cache of the source's keys, without arrays."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        zq = nearest_resize(zq, f.shape[1:4], first_apart=f.shape[1] > 1 and f.shape[1] % 2 == 1)
        scale, new_cache["conv_y"] = self.conv_y(zq, conv_cache=conv_cache.get("conv_y"))
        shift, new_cache["conv_b"] = self.conv_b(zq, conv_cache=conv_cache.get("conv_b"))
        return multiply_add(self.norm_layer(f), scale, shift), new_cache
