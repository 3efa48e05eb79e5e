"""The files of a model that diffusers saved, and their tensors read one by one.

A folder that diffusers saved, or a Hub repository: one safetensors file, or several and an index.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from jaxvae.io.messages import not_installed, shown

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"
INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
SHARDED_NAME = "_CHECKPOINT_METADATA"
"""File that tells a checkpoint of `jaxvae.save_checkpoint` from a folder that diffusers saved."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class WeightsError(ValueError):
    """Weights that cannot be read or do not fit the model."""


class Tensors(Mapping[str, Any]):
    """The tensors of some safetensors files, each read when asked for.

    A file is open only while one tensor is read: an open one is mapped into memory, where all that
    was read of it would stay.
    """

    def __init__(self, files: list[Path]):
        """Read the names in every file; raises WeightsError if one is broken or has them twice."""
        self._files: dict[str, Path] = {}
        for path in files:
            try:
                with safe_open(path, framework="numpy") as handle:
                    names = list(handle.keys())
            except (SafetensorError, OSError, MemoryError) as error:
                raise WeightsError(
                    f"{path}: expected a complete safetensors file, found {error}; fetch it again"
                ) from error
            for name in names:
                if name in self._files:
                    raise WeightsError(f"{path}: {shown(name)} is in {self._files[name]} as well")
                self._files[name] = path

    def check_places(self, index: Path) -> None:
        """Raise WeightsError unless each tensor lies where `index` says; not all need be in it."""
        places = _weight_map(index)
        for name in [*places, *self._files]:
            said, found = places.get(name), self._files.get(name)
            if found is None or said != found.name:
                raise WeightsError(
                    f"{index}: {shown(name)} is said to be in {said and shown(said)}, found in"
                    f" {found and found.name}; fetch all of it again"
                )

    def __getitem__(self, name: str) -> Any:
        path = self._files[name]
        try:
            with safe_open(path, framework="numpy") as handle:
                return handle.get_tensor(name)
        except (SafetensorError, OSError, MemoryError) as error:
            raise WeightsError(f"{path}: {name} cannot be read ({error})") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def split_source(source: str) -> tuple[str, str | None]:
    """Return folder or repository, and its subfolder.

    A pipeline keeps its autoencoder in `vae`: a local one is looked into, of one on the Hub it is
    said as `owner/name:vae`.
    """
    folder = Path(source)
    if folder.is_dir():
        inside = not (folder / CONFIG_NAME).exists() and (folder / "vae" / CONFIG_NAME).exists()
        return source, "vae" if inside else None
    repository, _, subfolder = source.partition(":")
    return repository, subfolder or None


def find_folder(
    path_or_repo: str | Path, subfolder: str | None, revision: str | None, local_files_only: bool
) -> Path:
    """Return the folder with the model's files, fetched from the Hub if it is no folder here."""
    root = Path(path_or_repo)
    if not root.is_dir():
        # "./x", "/x", "x" and "x/y/z" are no repository ids, nor is any Path.
        name = str(path_or_repo)
        if isinstance(path_or_repo, Path) or name.count("/") != 1 or name[0] in "./~":
            raise WeightsError(f"{name}: expected a folder or a Hub id owner/name, found neither")
        root = _download(name, subfolder, revision, local_files_only)
    return root / subfolder if subfolder else root


def find_config(folder: Path) -> Path:
    """Return the configuration of a folder; raises WeightsError if there is none."""
    if (folder / CONFIG_NAME).is_file():
        return folder / CONFIG_NAME
    if (folder / SHARDED_NAME).exists():
        raise WeightsError(
            f"{folder}: expected a folder that diffusers saved, found a checkpoint of JAX; use"
            f" jaxvae.load_checkpoint, or convert it back: jaxvae convert {folder} NEW_FOLDER"
        )
    raise WeightsError(
        f"{folder}: expected a {CONFIG_NAME}, found none; give the folder that diffusers saved"
        " (of a pipeline: its subfolder vae)"
    )


def _download(
    repo: str, subfolder: str | None, revision: str | None, local_files_only: bool
) -> Path:
    try:
        import huggingface_hub  # takes half a second; most weights lie in a folder
    except ModuleNotFoundError as error:
        raise WeightsError(f"{repo}: no folder here, and {not_installed(error)}") from error

    stem = WEIGHTS_NAME.removesuffix(".safetensors")
    wanted = (CONFIG_NAME, WEIGHTS_NAME, INDEX_NAME, f"{stem}-*.safetensors")
    prefix = f"{subfolder}/" if subfolder else ""
    try:
        return Path(
            huggingface_hub.snapshot_download(
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


def open_weights(folder: Path) -> Tensors:
    """Return the tensors of a folder; as in diffusers an index comes first."""
    if (folder / INDEX_NAME).is_file():
        tensors = Tensors(_shards(folder / INDEX_NAME))
        tensors.check_places(folder / INDEX_NAME)
        return tensors
    if (folder / WEIGHTS_NAME).is_file():
        return Tensors([folder / WEIGHTS_NAME])
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise WeightsError(
            f"{folder}: expected {WEIGHTS_NAME}, found only {', '.join(map(shown, pickles))}; a"
            " pickle can run code when it is read, so convert it with"
            " save_pretrained(safe_serialization=True)"
        )
    others = sorted({path.name for path in folder.glob("*.safetensors")} - {WEIGHTS_NAME})
    hint = f"; rename one of {', '.join(map(shown, others))}" if others else ""
    raise WeightsError(f"{folder}: expected {WEIGHTS_NAME} or {INDEX_NAME}, found neither{hint}")


def _shards(index: Path) -> list[Path]:
    files = []
    for name in sorted(set(_weight_map(index).values())):
        try:
            there = (index.parent / name).is_file()
        except (OSError, ValueError):  # longer than a name can be, or with a NUL
            there = False
        if not there:
            raise WeightsError(f"{index}: names {shown(name)}, which is not there; fetch it again")
        files.append(index.parent / name)
    return files


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file that an index says each tensor is in."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise WeightsError(
            f"{index}: expected a JSON object with a weight_map, found {shown(repr(error))}"
        ) from error
    if not isinstance(found, dict) or not found:
        raise WeightsError(
            f"{index}: expected a weight_map of tensors to files, found {shown(repr(found))}"
        )
    for name in found.values():
        inside = isinstance(name, str) and PurePosixPath(name).name == name
        if not inside or "\\" in name or name == "..":
            raise WeightsError(
                f"{index}: expected file names in the same folder, found {shown(repr(name))};"
                " refused"
            )
    return found
