"""Loading and saving as methods of a model: folders and Hub repositories as diffusers has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxvae.io.diffusers_folder import WeightsError, find_config, find_folder, open_weights
from jaxvae.io.saving import save_pretrained
from jaxvae.io.weights import load_torch_state
from jaxvae.layers.convolution import Precision


class _OneKey(nnx.Rngs):
    """Streams with the same key for every parameter, where no value is computed.

    A stream counts its keys; in flax 0.12.8 counting one while JAX traces takes longer the more
    was traced before.
    """

    def params(self) -> jax.Array:
        return jax.random.key(0)


class Pretrained(nnx.Module):
    """A model that is made of a configuration, and has PyTorch's weights under PyTorch's names.

    Source: diffusers 0.42.1, `ModelMixin`.
    """

    config_class: ClassVar[Any]
    """The class of `config`; it reads and checks a `config.json`."""
    config: Any

    @classmethod
    def without_values(
        cls,
        config: Any,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
        param_dtype: DTypeLike | None = None,
    ) -> Self:
        """Return a model with shapes in the place of values: no initial weights are computed."""
        make: Any = cls
        model: Self = nnx.eval_shape(
            lambda: make(
                config, rngs=_OneKey(0), dtype=dtype, precision=precision, param_dtype=param_dtype
            )
        )
        return model

    @classmethod
    def from_torch_state(
        cls,
        config: Any,
        tensors: Mapping[str, Any],
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
        param_dtype: DTypeLike | None = None,
    ) -> Self:
        """Build from a configuration and a PyTorch state dict of arrays, in evaluation mode.

        `tensors` is read one at a time and may read lazily, so that no second copy of all the
        weights is held.
        """
        model = cls.without_values(config, dtype, precision, param_dtype)
        load_torch_state(model, tensors)
        model.eval()  # type: ignore[no-untyped-call]
        return model

    @classmethod
    def from_pretrained(
        cls,
        path_or_repo: str | Path,
        subfolder: str | None = None,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
        revision: str | None = None,
        local_files_only: bool = False,
        param_dtype: DTypeLike | None = None,
    ) -> Self:
        """Load `config.json` and safetensors of a folder or a Hub repository, as diffusers saves.

        A name that is no folder here is a repository id (`owner/name`); `revision` and
        `local_files_only` concern the Hub only. Pickled weights are refused. The tensors are read
        one by one, so that memory never holds more than the model and about two of them.

        `dtype` is what the model computes in, `param_dtype` what its parameters are kept in,
        whatever the files hold (None: `dtype`). Raises ConfigError or WeightsError.
        """
        folder = find_folder(path_or_repo, subfolder, revision, local_files_only)
        config = cls.config_class.from_json(find_config(folder))
        tensors = open_weights(folder)
        try:
            return cls.from_torch_state(config, tensors, dtype, precision, param_dtype)
        except WeightsError as error:
            raise WeightsError(f"{folder}: {error}") from error

    def save_pretrained(self, folder: str | Path, max_shard_size: int | str = "10GB") -> None:
        """Write `config.json` and safetensors, as diffusers saves; see `io/saving.py`."""
        save_pretrained(self, folder, max_shard_size)
