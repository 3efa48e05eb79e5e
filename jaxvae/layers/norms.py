"""Norms, activations and dropout, channels-last. Parameters of a norm are `scale` and `bias`.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`, and the torch layers it uses.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxvae.layers.convolution import Cache, CausalConv3d
from jaxvae.layers.resample import nearest_resize
from jaxvae.layers.rounding import multiply_add, narrow, widen
from jaxvae.layers.scopes import Module


class GroupNorm(Module):
    """Group normalisation over every axis but the batch, accurate for a large mean.

    Source: torch 2.13, `nn.GroupNorm`. The statistics are those of one call: a chunk of frames is
    normalised by itself.

    Numerics: all in float32 (float64 for float64), and the result is rounded once. The mean is
    subtracted, then the mean of what is left, then the variance is taken; each mean goes over the
    positions of one channel first and over the channels of a group second. rms distance from
    float64 at (1, 9, 64, 64, 128): 6e-8 at mean / std = 0, 30 and 100, where PyTorch has 6e-8,
    1.4e-6 and 4.7e-6.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        *,
        dtype: DTypeLike = jnp.float32,
    ):
        """Take PyTorch's arguments. Scale starts at one, bias at zero."""
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_channels} channels are not divisible by {num_groups} groups"
            )
        self.scale = nnx.Param(jnp.ones((num_channels,), dtype))
        self.bias = nnx.Param(jnp.zeros((num_channels,), dtype))
        self.num_groups = num_groups
        self.eps = eps

    def __call__(self, input: Float[Array, "b *positions c"]) -> Float[Array, "b *positions c"]:
        """Normalise and apply scale and bias."""
        scale, bias = self.scale[...], self.bias[...]
        output: Array = _group_norm(input, scale, bias, self.num_groups, self.eps)
        return output


@partial(jax.jit, static_argnames=("num_groups", "eps"))
def _group_norm(
    input: Float[Array, "b *positions c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    num_groups: int,
    eps: float,
) -> Float[Array, "b *positions c"]:
    x = widen(input)
    x = x - _group_mean(x, num_groups)
    x = x - _group_mean(x, num_groups)
    variance = _group_mean(jnp.square(x), num_groups)
    per_channel = (1,) * (x.ndim - 1) + (-1,)
    scale = widen(scale.astype(input.dtype)).reshape(per_channel)
    bias = widen(bias.astype(input.dtype)).reshape(per_channel)
    return narrow(x * (lax.rsqrt(variance + eps) * scale) + bias, input.dtype)


def _group_mean(x: Float[Array, "b *positions c"], num_groups: int) -> Array:
    # (b, 1, ..., 1, c): each group's mean, repeated for its channels.
    channels = jnp.mean(x, axis=tuple(range(1, x.ndim - 1)))
    groups = jnp.mean(channels.reshape(x.shape[0], num_groups, -1), axis=-1)
    repeated = jnp.repeat(groups, x.shape[-1] // num_groups, axis=-1)
    return repeated.reshape(x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])


class SpatialNorm3D(Module):
    """Group normalisation whose scale and bias are predicted from the latent `zq`.

    Source: diffusers 0.42.1, `CogVideoXSpatialNorm3D`. `zq` is resized to the size of `f`. With an
    odd number of frames above one, the first frame of each is kept apart: 3 latent frames and 9
    frames of `f` pair as 1 with 1 and 2 with 8. The eps is always 1e-6.
    """

    def __init__(self, f_channels: int, zq_channels: int, groups: int = 32, **build: Any):
        """Take PyTorch's arguments."""
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


class SiLU(Module):
    """x * sigmoid(x). Source: torch 2.13, `nn.SiLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _silu(input)
        return output


class Mish(Module):
    """x * tanh(softplus(x)). Source: torch 2.13, `nn.Mish`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _mish(input)
        return output


class GELU(Module):
    """x * Phi(x) with the exact erf, not the tanh formula. Source: torch 2.13, `nn.GELU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        output: Array = _gelu(input)
        return output


class ReLU(Module):
    """max(x, 0). Source: torch 2.13, `nn.ReLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return jax.nn.relu(input)  # its gradient at 0 is 0, as torch's; that of jnp.maximum is 0.5


@jax.jit
def _silu(x: Array) -> Array:
    wide = widen(x)
    return narrow(wide * jax.nn.sigmoid(wide), x.dtype)


@jax.jit
def _mish(x: Array) -> Array:
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2): the gradient of tanh itself is a difference
    # of nearly equal numbers where it is near 1. Above the bound it is 1 in all digits.
    wide = widen(x)
    power = jnp.exp(jnp.minimum(wide, 20 if wide.dtype == jnp.float64 else 10))
    doubled = power * (power + 2)
    return narrow(wide * (doubled / (doubled + 2)), x.dtype)


@jax.jit
def _gelu(x: Array) -> Array:
    return narrow(jax.nn.gelu(widen(x), approximate=False), x.dtype)


class Dropout(Module):
    """Zero elements with probability `p` and multiply the rest by 1 / (1 - p).

    Source: torch 2.13, `nn.Dropout`. The factor is not rounded to bfloat16 (as on a GPU; PyTorch's
    CPU code rounds it). Does nothing after `.eval()`. The random stream is forked from
    the constructor's `rngs`, and only where `p` is above zero.
    """

    def __init__(self, p: float = 0.5, *, rngs: nnx.Rngs):
        """Take PyTorch's probability."""
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: expected a probability in [0, 1), found {p}")
        self.p = p
        self.deterministic = False
        self.rngs = nnx.data(rngs.dropout.fork() if p > 0 else None)

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Drop elements, or return the input as it is."""
        if self.rngs is None or self.deterministic:
            return input
        keep = jax.random.bernoulli(self.rngs(), 1 - self.p, input.shape)
        kept = narrow(widen(input) * (1 / (1 - self.p)), input.dtype)
        return jnp.where(keep, kept, jnp.zeros_like(input))


_ACTIVATIONS: dict[str, type[nnx.Module]] = {
    "silu": SiLU,
    "swish": SiLU,
    "mish": Mish,
    "gelu": GELU,
    "relu": ReLU,
}


def get_activation(act_fn: str) -> Any:
    """Return a new activation module for one of diffusers' names, in any case."""
    try:
        return _ACTIVATIONS[act_fn.lower()]()
    except KeyError:
        names = ", ".join(_ACTIVATIONS)
        raise ValueError(f"act_fn: expected one of {names}, found {act_fn!r}") from None
