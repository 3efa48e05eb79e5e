"""Flax NNX ports of diffusers' autoencoders of images and videos."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxvae.io.diffusers_folder import WeightsError
    from jaxvae.io.sharded_checkpoint import save_checkpoint
    from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX
    from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
    from jaxvae.models.config import ConfigError
    from jaxvae.models.kl.autoencoder import AutoencoderKL
    from jaxvae.models.kl.config import KLVAEConfig
    from jaxvae.models.latents import scale_latents, unscale_latents
    from jaxvae.models.loading import from_pretrained, load_checkpoint
    from jaxvae.models.posterior import DiagonalGaussian
    from jaxvae.models.wan.autoencoder import AutoencoderKLWan
    from jaxvae.models.wan.config import WanVAEConfig

    __version__: str

__all__ = [
    "AutoencoderKL",
    "AutoencoderKLCogVideoX",
    "AutoencoderKLWan",
    "CogVideoXVAEConfig",
    "ConfigError",
    "DiagonalGaussian",
    "KLVAEConfig",
    "WanVAEConfig",
    "WeightsError",
    "from_pretrained",
    "load_checkpoint",
    "save_checkpoint",
    "scale_latents",
    "unscale_latents",
]

_HOMES = {
    "AutoencoderKL": "models.kl.autoencoder",
    "AutoencoderKLCogVideoX": "models.cogvideox.autoencoder",
    "AutoencoderKLWan": "models.wan.autoencoder",
    "WanVAEConfig": "models.wan.config",
    "DiagonalGaussian": "models.posterior",
    "WeightsError": "io.diffusers_folder",
    "CogVideoXVAEConfig": "models.cogvideox.config",
    "ConfigError": "models.config",
    "KLVAEConfig": "models.kl.config",
    **dict.fromkeys(("from_pretrained", "load_checkpoint"), "models.loading"),
    "save_checkpoint": "io.sharded_checkpoint",
    **dict.fromkeys(("scale_latents", "unscale_latents"), "models.latents"),
}


def __getattr__(name: str) -> Any:
    # jax takes seconds to import: not for `jaxvae --help`
    from importlib import import_module
    from importlib.metadata import version

    if name == "__version__":
        return version("nnx-parity")
    if name in _HOMES:
        try:
            return getattr(import_module(f"jaxvae.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            from jaxvae.io.messages import not_installed

            if text := not_installed(error):
                raise ImportError(f"jaxvae.{name}: {text}") from error
            raise
    raise AttributeError(f"module 'jaxvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__, "__version__"]
