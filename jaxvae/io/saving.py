"""Save a model as diffusers does, so that PyTorch loads it back bit for bit.

Source: diffusers 0.42.1, `ModelMixin.save_pretrained` and `ConfigMixin.save_config`. The files are
those of diffusers, byte for byte; how tensors are spread over several files may differ.
"""

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flax import nnx

from jaxvae.io.diffusers_folder import CONFIG_NAME, INDEX_NAME, WEIGHTS_NAME, WeightsError
from jaxvae.io.files import discard
from jaxvae.io.messages import not_installed
from jaxvae.io.weights import parameter_slots, torch_shape

DIFFUSERS_VERSION = "0.42.1"
"""The version whose layout this is, and what config.json says."""

_STEM = WEIGHTS_NAME.removesuffix(".safetensors")
_OURS = re.compile(rf"{re.escape(_STEM)}(-\d{{5,}}-of-\d{{5,}})?\.safetensors(\.index\.json)?")
_FORMATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}


class TorchState(Mapping[str, Any]):
    """The parameters of a model under PyTorch's names and in its order of axes.

    Each is copied to the host when it is asked for, and not kept.
    """

    def __init__(self, model: nnx.Module):
        """Raises TypeError if a parameter belongs to no known kind of layer."""
        self._slots = parameter_slots(model)

    def __getitem__(self, name: str) -> np.ndarray:
        param, axes = self._slots[name]
        array = np.asarray(param[...])
        return np.ascontiguousarray(array if axes is None else array.transpose(np.argsort(axes)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def spec(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Return dtype and shape of a tensor without copying it."""
        param, axes = self._slots[name]
        return np.dtype(param.dtype), torch_shape(param.shape, axes)

    def nbytes(self, name: str) -> int:
        """Return the size of a tensor."""
        dtype, shape = self.spec(name)
        return dtype.itemsize * int(np.prod(shape))


def save_pretrained(model: Any, folder: str | Path, max_shard_size: int | str = "10GB") -> None:
    """Write `config.json` and the parameters, in the dtype that they have, into a folder.

    Above `max_shard_size` (bytes, or a string such as "5GB") there are several files and an index.
    One tensor at a time is copied. Every file is written beside its place before any is moved
    there, so that a save that cannot be written leaves what was there before. While files are moved
    there is no `config.json`: a save that is interrupted then cannot be loaded as a mixture of two.
    Weights of an earlier save that no longer belong to the model are removed. Raises WeightsError.
    """
    folder = Path(folder)
    state = TorchState(model)
    split = _split(state, max_shard_size)
    config = {**model.config.to_dict(), "_class_name": model.config.class_name}
    files = {CONFIG_NAME: _json(config | {"_diffusers_version": DIFFUSERS_VERSION})}
    if len(split.filename_to_tensors) > 1:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        files[INDEX_NAME] = _json(index)
    mark, there = f".{uuid4().hex}.partial", folder.exists()
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in split.filename_to_tensors.items():
            written.append(folder / (name + mark))
            _write_tensors(written[-1], state, tensors)
        for name, text in files.items():
            written.append(folder / (name + mark))
            _write_text(written[-1], text)
        (folder / CONFIG_NAME).unlink(missing_ok=True)
        for path in folder.iterdir():
            known = path.name in files or path.name in split.filename_to_tensors
            if _OURS.fullmatch(path.name) and not known:
                path.unlink()
        for path in sorted(written, key=lambda path: path.name.startswith(CONFIG_NAME)):
            path.replace(path.with_name(path.name.removesuffix(mark)))
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be written ({error})") from error
    finally:
        for path in written:
            discard(path)
        with suppress(OSError):  # it has something in it, or was not made
            if not there:
                folder.rmdir()


def _split(state: TorchState, max_shard_size: int | str) -> Any:
    # The library that diffusers asks as well; here it gets names in place of tensors. Importing it
    # takes half a second, and most programs never save.
    try:
        from huggingface_hub import split_state_dict_into_shards_factory
    except ModuleNotFoundError as error:
        raise WeightsError(not_installed(error)) from error

    return split_state_dict_into_shards_factory(
        {name: [name] for name in state},
        get_storage_size=lambda names: state.nbytes(names[0]),
        filename_pattern=_STEM + "{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(path: Path, state: TorchState, names: Sequence[str]) -> None:
    """Write one safetensors file, tensor by tensor: its own library wants all of them at once.

    The format: the length of the header (8 bytes, little-endian), the header (JSON, padded to a
    multiple of 8), then the tensors without a gap, the widest dtype first and then by name.
    """
    ordered = sorted(names, key=lambda name: (-state.spec(name)[0].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in ordered:
        dtype, shape = state.spec(name)
        start, end = end, end + state.nbytes(name)
        header[name] = {
            "dtype": _FORMATS[dtype.name],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            file.write(state[name].view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
