"""A Flax NNX port of the CogVideoX video VAE."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxvae import aot
    from jaxvae.autoencoder import AutoencoderKLCogVideoX
    from jaxvae.checkpoint import load_checkpoint, save_checkpoint
    from jaxvae.config import CogVideoXVAEConfig, ConfigError
    from jaxvae.files import WeightsError
    from jaxvae.latents import scale_latents, unscale_latents
    from jaxvae.posterior import DiagonalGaussian

    __version__: str

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

_HOMES = {
    "AutoencoderKLCogVideoX": "autoencoder",
    "DiagonalGaussian": "posterior",
    "WeightsError": "files",
    **dict.fromkeys(("CogVideoXVAEConfig", "ConfigError"), "config"),
    **dict.fromkeys(("load_checkpoint", "save_checkpoint"), "checkpoint"),
    **dict.fromkeys(("scale_latents", "unscale_latents"), "latents"),
}


def __getattr__(name: str) -> Any:
    # jax takes seconds to import: not for `jaxvae --help`
    from importlib import import_module
    from importlib.metadata import version

    if name == "__version__":
        return version("jaxvae")
    if name == "aot":
        return import_module("jaxvae.aot")
    if name in _HOMES:
        return getattr(import_module(f"jaxvae.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'jaxvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, "__version__"]
