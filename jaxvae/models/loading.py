"""A model from a sharded checkpoint."""

from pathlib import Path

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxvae.io.sharded_checkpoint import Placement, restore
from jaxvae.layers.convolution import Precision
from jaxvae.models.cogvideox.autoencoder import AutoencoderKLCogVideoX


def load_checkpoint(
    path: str | Path,
    placement: Placement | None = None,
    dtype: DTypeLike = jnp.float32,
    precision: Precision = "highest",
    param_dtype: DTypeLike | None = None,
) -> AutoencoderKLCogVideoX:
    """Return the model of a checkpoint, in evaluation mode, its parameters placed as asked for.

    Each device reads its part only, however the parameters were sharded when they were saved.
    Without `placement` all go to the first device. Another `param_dtype` than they were saved in
    rounds them. Raises WeightsError.
    """
    return restore(AutoencoderKLCogVideoX, path, placement, dtype, precision, param_dtype)
