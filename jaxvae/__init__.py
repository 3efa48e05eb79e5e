"""A Flax NNX port of the CogVideoX video VAE."""

from importlib.metadata import version

from jaxvae import aot
from jaxvae.autoencoder import AutoencoderKLCogVideoX
from jaxvae.checkpoint import load_checkpoint, save_checkpoint
from jaxvae.config import CogVideoXVAEConfig, ConfigError
from jaxvae.files import WeightsError
from jaxvae.latents import scale_latents, unscale_latents
from jaxvae.posterior import DiagonalGaussian

__version__ = version("jaxvae")

__all__ = [
    "AutoencoderKLCogVideoX",
    "CogVideoXVAEConfig",
    "ConfigError",
    "DiagonalGaussian",
    "WeightsError",
    "aot",
    "load_checkpoint",
    "save_checkpoint",
    "scale_latents",
    "unscale_latents",
]
