"""PyTorch weights into the model: diffusers folders, Hub repositories, tensor mappings.

A mapping goes by the type of the module that owns a parameter, and it is a bijection: every tensor
is used once and every parameter set once, or loading fails and names what does not fit.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from huggingface_hub import snapshot_download
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from jaxvae.autoencoder import AutoencoderKLCogVideoX
from jaxvae.config import CogVideoXVAEConfig
from jaxvae.convolution import Conv2d, Conv3d, Linear, Precision
from jaxvae.layers import GroupNorm

WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"
INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_COMPILED_PREFIX = "_orig_mod."  # what torch.compile puts before every name
_SHOWN = 8

# Per type: our name, torch's name, and the torch axes in our order (None: as it is).
_PARAMETERS: dict[type, tuple[tuple[str, str, tuple[int, ...] | None], ...]] = {
    Conv3d: (("kernel", "weight", (2, 3, 4, 1, 0)), ("bias", "bias", None)),
    Conv2d: (("kernel", "weight", (2, 3, 1, 0)), ("bias", "bias", None)),
    Linear: (("kernel", "weight", (1, 0)), ("bias", "bias", None)),
    GroupNorm: (("scale", "weight", None), ("bias", "bias", None)),
}


class WeightsError(ValueError):
    """Weights that cannot be read or do not fit the model."""


def from_torch_state(
    config: CogVideoXVAEConfig,
    tensors: Mapping[str, Any],
    dtype: DTypeLike = jnp.float32,
    precision: Precision = "highest",
    param_dtype: DTypeLike | None = None,
) -> AutoencoderKLCogVideoX:
    """Build the model from a PyTorch state dict of arrays, in evaluation mode.

    `tensors` is read one at a time and may read lazily, so that no second copy of all the weights
    is held. No random initial weights are computed.
    """
    model = nnx.eval_shape(
        lambda: AutoencoderKLCogVideoX(
            config, rngs=nnx.Rngs(0), dtype=dtype, precision=precision, param_dtype=param_dtype
        )
    )
    load_torch_state(model, tensors)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def load_torch_state(model: nnx.Module, tensors: Mapping[str, Any]) -> None:
    """Set every parameter of `model` (or of one of its blocks) from PyTorch tensors.

    The model is left as it was unless everything fits.
    """
    slots = _slots(model)
    names: dict[str, str] = {}
    unexpected = []
    for given in tensors:
        name = given.removeprefix(_COMPILED_PREFIX)
        if name in slots and name not in names:
            names[name] = given
        else:
            unexpected.append(given)
    misshapen = []
    values = []
    for name, given in names.items():
        param, axes = slots[name]
        array = np.asarray(tensors[given])
        shape = _torch_shape(param.shape, axes)
        if array.shape != shape:
            misshapen.append(f"{name} (expected {shape}, found {array.shape})")
            continue
        # A copy: the caller may change its array later, and jax may alias numpy memory on CPU.
        values.append((param, jnp.array(array if axes is None else array.transpose(axes))))
        values[-1] = (param, values[-1][1].astype(param.dtype))
    missing = [name for name in slots if name not in names]
    problems = [
        _listed(what, found)
        for what, found in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
        )
        if found
    ]
    if problems:
        raise WeightsError(
            f"the tensors do not fit the model: {'; '.join(problems)}. Check that the config"
            " belongs to these weights"
        )
    for param, value in values:
        param.set_value(value)


def from_pretrained(
    path_or_repo: str | Path,
    subfolder: str | None = None,
    dtype: DTypeLike = jnp.float32,
    precision: Precision = "highest",
    revision: str | None = None,
    local_files_only: bool = False,
    param_dtype: DTypeLike | None = None,
) -> AutoencoderKLCogVideoX:
    """Load `config.json` and safetensors from a folder or a Hub repository, as diffusers saves.

    A name that is no folder here is a repository id (`owner/name`); `revision` and
    `local_files_only` concern the Hub only. Pickled weights are refused.
    """
    folder = _find_folder(path_or_repo, subfolder, revision, local_files_only)
    if not (folder / "config.json").is_file():
        raise WeightsError(
            f"{folder}: expected a config.json, found none; give the folder that diffusers saved"
            " (of a pipeline: its subfolder vae)"
        )
    config = CogVideoXVAEConfig.from_json(folder / "config.json")
    files = _weight_files(folder)
    with ExitStack() as stack:
        try:
            return from_torch_state(config, _Tensors(files, stack), dtype, precision, param_dtype)
        except WeightsError as error:
            raise WeightsError(f"{folder}: {error}") from error


class _Tensors(Mapping[str, Any]):
    """The tensors of some safetensors files, read when asked for."""

    def __init__(self, files: list[Path], stack: ExitStack):
        self._handles: dict[str, tuple[Path, Any]] = {}
        for path in files:
            try:
                handle = stack.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise WeightsError(
                    f"{path}: expected a complete safetensors file, found {error}; fetch it again"
                ) from error
            for name in handle.keys():  # noqa: SIM118 (not a mapping)
                if name in self._handles:
                    raise WeightsError(f"{path}: {name} is in {self._handles[name][0]} as well")
                self._handles[name] = (path, handle)

    def __getitem__(self, name: str) -> Any:
        path, handle = self._handles[name]
        try:
            return handle.get_tensor(name)
        except SafetensorError as error:
            raise WeightsError(f"{path}: {name} cannot be read ({error})") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


def _slots(model: nnx.Module) -> dict[str, tuple[Any, tuple[int, ...] | None]]:
    """Return torch name -> (parameter, axes) for every parameter of the model."""
    slots = {}
    for path, module in nnx.iter_modules(model):
        for ours, theirs, axes in _PARAMETERS.get(type(module), ()):
            slots[".".join(str(part) for part in (*path, theirs))] = (getattr(module, ours), axes)
    count = len(jax.tree.leaves(nnx.state(model, nnx.Param)))
    if len(slots) != count:
        raise TypeError(f"{count} parameters, but only {len(slots)} in modules with a known layout")
    return slots


def _torch_shape(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    if axes is None:
        return shape
    return tuple(shape[axes.index(i)] for i in range(len(axes)))


def _listed(what: str, names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"


def _find_folder(
    path_or_repo: str | Path, subfolder: str | None, revision: str | None, local_files_only: bool
) -> Path:
    root = Path(path_or_repo)
    if not root.is_dir():
        # "./x", "/x", "x" and "x/y/z" are no repository ids, nor is any Path.
        name = str(path_or_repo)
        if isinstance(path_or_repo, Path) or name.count("/") != 1 or name[0] in "./~":
            raise WeightsError(f"{name}: expected a folder or a Hub id owner/name, found neither")
        root = _download(name, subfolder, revision, local_files_only)
    return root / subfolder if subfolder else root


def _download(
    repo: str, subfolder: str | None, revision: str | None, local_files_only: bool
) -> Path:
    stem = WEIGHTS_NAME.removesuffix(".safetensors")
    wanted = ("config.json", WEIGHTS_NAME, INDEX_NAME, f"{stem}-*.safetensors")
    prefix = f"{subfolder}/" if subfolder else ""
    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=[prefix + name for name in wanted],
                local_files_only=local_files_only,
            )
        )
    except Exception as error:
        # The Hub client raises its own, requests' and the system's errors: all mean "not fetched".
        reason = str(error).strip().splitlines()
        raise WeightsError(
            f"{repo}: not a folder here, and the Hub did not give it"
            f" ({type(error).__name__}: {reason[0] if reason else 'no reason given'})"
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_NAME).is_file():
        return [folder / WEIGHTS_NAME]
    if (folder / INDEX_NAME).is_file():
        return _shards(folder / INDEX_NAME)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise WeightsError(
            f"{folder}: expected {WEIGHTS_NAME}, found only {', '.join(pickles)}; a pickle can run"
            " code when it is read, so convert it with save_pretrained(safe_serialization=True)"
        )
    raise WeightsError(f"{folder}: expected {WEIGHTS_NAME} or {INDEX_NAME}, found neither")


def _shards(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WeightsError(
            f"{index}: expected a JSON object with a weight_map, found {error!r}"
        ) from error
    files = []
    for name in sorted(names, key=str):
        if (
            not isinstance(name, str)
            or PurePosixPath(name).name != name
            or "\\" in name
            or name == ".."
        ):
            raise WeightsError(
                f"{index}: expected file names in the same folder, found {name!r}; refused"
            )
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index}: names {name}, which is not there; fetch it again")
        files.append(index.parent / name)
    return files
