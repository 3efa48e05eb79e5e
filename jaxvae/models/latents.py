"""Latents between the autoencoder and a diffusion model, as the pipelines of diffusers scale them.

Source: diffusers 0.42.1, `pipelines/cogvideo`, and `stable_diffusion`, `stable_diffusion_xl` and
`flux` for images, `wan`. The autoencoder itself never scales.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxvae.layers.rounding import add, narrow, wide_dtype, widen
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.models.kl.config import KLVAEConfig
from jaxvae.models.wan.config import WanVAEConfig

Latent = Float[Array, "b *positions c"]
Config = CogVideoXVAEConfig | KLVAEConfig | WanVAEConfig


def scale_latents(latents: Latent, config: Config) -> Latent:
    """Return what a diffusion model gets, from what `encode` gave: latents * scaling_factor.

    With CogVideoX's `invert_scale_latents` they are divided instead.

    Source: the image latents of `CogVideoXImageToVideoPipeline`. Quirks of the source, kept:
    - `unscale_latents` divides in either case, so that with `invert_scale_latents` it does not
      undo this function.
    - The other CogVideoX pipelines ignore `invert_scale_latents`: to scale like them, use
      `dataclasses.replace(config, invert_scale_latents=False)`.

    No CogVideoX pipeline reads `shift_factor`, or `latents_mean` and `latents_std`. Where they are
    set it is what the pipelines of other models do: (latents - shift) * factor (`FluxPipeline`), or
    per channel (latents - mean) * factor / std (`StableDiffusionXLPipeline`), where a mean without
    a std, or a std without a mean, counts for nothing.

    Raises ValueError if both are set, or for another number of channels than the latent has.
    """
    shift, std = _moments(latents, config)
    factor = config.scaling_factor
    if shift is not None:
        latents = add(latents, -shift)
    inverted = isinstance(config, CogVideoXVAEConfig) and config.invert_scale_latents
    latents = _times(latents, 1 / factor if inverted else factor)
    return latents if std is None else _divided(latents, std)


def unscale_latents(latents: Latent, config: Config) -> Latent:
    """Return what `decode` takes, from what a diffusion model gave: latents / scaling_factor.

    Source: `CogVideoXPipeline.decode_latents`; for the fields that no CogVideoX pipeline reads,
    latents / factor + shift or latents * std / factor + mean, see `scale_latents`.
    `invert_scale_latents` has no effect here. Raises ValueError as `scale_latents` does.
    """
    shift, std = _moments(latents, config)
    if std is not None:
        latents = _times(latents, std)
    if shift is None and isinstance(config, CogVideoXVAEConfig):
        # Its pipelines multiply by the rounded reciprocal, and those of the others divide.
        return _times(latents, 1 / config.scaling_factor)
    latents = _divided(latents, config.scaling_factor)
    return latents if shift is None else add(latents, shift)


def _moments(
    latents: Latent, config: Config
) -> tuple[Float[Array, "..."] | None, Float[Array, "..."] | None]:
    """Return what is subtracted and what is divided by, ready to broadcast."""
    channels = latents.shape[-1] if latents.ndim else 0
    if channels != config.latent_channels:
        raise ValueError(
            f"latents: expected (..., {config.latent_channels}), found shape {latents.shape};"
            " channels are last here"
        )
    if config.latents_mean is None or config.latents_std is None:
        shift = config.shift_factor
        return None if shift is None else jnp.asarray(shift, latents.dtype), None
    if config.shift_factor is not None:
        raise ValueError(
            "expected shift_factor or latents_mean and latents_std, found both; no pipeline says"
            " which comes first, so set one of them to null"
        )
    for name in ("latents_mean", "latents_std"):
        if len(getattr(config, name)) != channels:
            raise ValueError(
                f"{name}: expected {channels} numbers, one a channel, found"
                f" {len(getattr(config, name))}"
            )
    row = (1,) * (latents.ndim - 1) + (-1,)
    mean = jnp.asarray(config.latents_mean, latents.dtype).reshape(row)
    return mean, jnp.asarray(config.latents_std, latents.dtype).reshape(row)


def _times(x: Latent, factor: float | Float[Array, "..."]) -> Latent:
    # PyTorch does not round a Python number to the dtype of the tensor; JAX would.
    return narrow(widen(x) * jnp.asarray(factor, wide_dtype(x.dtype)), x.dtype)


def _divided(x: Latent, divisor: float | Float[Array, "..."]) -> Latent:
    # XLA multiplies by the rounded reciprocal of what it sees to be repeated; PyTorch divides.
    wide = widen(x)
    repeated = jnp.broadcast_to(jnp.asarray(divisor, wide.dtype), wide.shape)
    return narrow(wide / lax.optimization_barrier(repeated), x.dtype)
