"""A model of whatever class a folder holds: diffusers' own, or a sharded checkpoint."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxvae.io.diffusers_folder import find_config, find_folder
from jaxvae.io.messages import shown
from jaxvae.io.sharded_checkpoint import Placement, restore
from jaxvae.layers.convolution import Precision
from jaxvae.models.autoencoder import Autoencoder
from jaxvae.models.config import ConfigError, read_json

MODELS = {
    "AutoencoderKL": "kl.autoencoder.AutoencoderKL",
    "AutoencoderKLCogVideoX": "cogvideox.autoencoder.AutoencoderKLCogVideoX",
    "AutoencoderKLQwenImage": "wan.autoencoder.AutoencoderKLWan",
    "AutoencoderKLWan": "wan.autoencoder.AutoencoderKLWan",
}
"""By the `_class_name` of a `config.json`: the port, in `jaxvae.models`."""

_UNNAMED = "AutoencoderKLCogVideoX"
"""The class of a configuration that names none."""


def class_of(settings: Mapping[str, Any]) -> type[Autoencoder]:
    """Return the port of the class that a `config.json` names; raise ConfigError without one."""
    name = settings.get("_class_name", _UNNAMED)
    if not isinstance(name, str) or name not in MODELS:
        known = ", ".join(MODELS)
        raise ConfigError(f"_class_name: expected one of {known}, found {shown(repr(name))}")
    module, _, port = MODELS[name].rpartition(".")
    found: type[Autoencoder] = getattr(import_module(f"jaxvae.models.{module}"), port)
    return found


def from_pretrained(
    path_or_repo: str | Path,
    subfolder: str | None = None,
    dtype: DTypeLike = jnp.float32,
    precision: Precision = "highest",
    revision: str | None = None,
    local_files_only: bool = False,
    param_dtype: DTypeLike | None = None,
) -> Autoencoder:
    """Return the model of a folder or a Hub repository, of the class that its `config.json` names.

    The arguments are those of `Pretrained.from_pretrained`. Raises ConfigError or WeightsError.
    """
    folder = find_folder(path_or_repo, subfolder, revision, local_files_only)
    path = find_config(folder)
    settings = read_json(path)
    try:
        model_class = class_of(settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return model_class.from_pretrained(
        folder, dtype=dtype, precision=precision, param_dtype=param_dtype
    )


def load_checkpoint(
    path: str | Path,
    placement: Placement | None = None,
    dtype: DTypeLike = jnp.float32,
    precision: Precision = "highest",
    param_dtype: DTypeLike | None = None,
) -> Autoencoder:
    """Return the model of a checkpoint, in evaluation mode, its parameters placed as asked for.

    Each device reads its part only, however the parameters were sharded when they were saved.
    Without `placement` all go to the first device. Another `param_dtype` than they were saved in
    rounds them. Raises WeightsError.
    """
    return restore(class_of, path, placement, dtype, precision, param_dtype)
