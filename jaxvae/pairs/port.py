"""The port's side of a pair: configurations by name, and what is called on a port.

Nothing here needs torch. A golden trace holds the names of these functions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxvae.models.config import ConfigError, VAEConfig
from parity import InputError

Config = TypeVar("Config", bound=VAEConfig)

R_LIMIT = 2.0
"""On inputs of a large mean the port is at most twice as far from float64 as PyTorch."""


def read_config(configs: Mapping[str, Config], config: str | None) -> Config:
    """Return one of `configs` by name, the first without a name, or that of a config.json."""
    name = config or next(iter(configs))
    if name in configs:
        return configs[name]
    if not Path(name).is_file():
        known = ", ".join(sorted(configs))
        raise InputError(f"no configuration {name!r}; expected {known} or a config.json file")
    try:
        return type(next(iter(configs.values()))).from_json(name)
    except ConfigError as error:
        raise InputError(str(error)) from error


def encode_nnx(model: Any, x: Any) -> dict[str, Any]:
    """Mean and clamped log-variance of the port's posterior."""
    posterior = model.encode(x, compiled=False)
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decode_nnx(model: Any, z: Any) -> Any:
    """The port's video or image."""
    return model.decode(z, compiled=False)


def forward_nnx(model: Any, sample: Any) -> Any:
    """The port's reconstruction, layer by layer."""
    return model(sample, compiled=False)


def forward_shipped(model: Any, sample: Any) -> Any:
    """The port's reconstruction as it is shipped, its programs compiled several at a time."""
    latent = jax.eval_shape(lambda x: model.encode(x).mode(), sample)
    model.compile_ahead(video=sample.shape, latent=latent.shape)
    return model(sample)


def call(module: Any, *inputs: Any) -> Any:
    """Call a module of either side with arrays."""
    return module(*inputs)
