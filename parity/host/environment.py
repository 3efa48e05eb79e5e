"""The environment that a figure depends on besides the code: recorded in every report."""

import functools
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parity.host import precision as probe

PACKAGES = ("nnx-parity", "jax", "jaxlib", "flax", "torch", "diffusers", "numpy", "safetensors")

FRAMEWORKS = ("jax", "torch")

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "XLA_FLAGS",
)
"""Settings outside the program that change figures; other settings show in what follows."""


def describe(seed: int, frameworks: Sequence[str] = FRAMEWORKS) -> Mapping[str, Any]:
    """Command, commit, versions, devices, precision and seed, as plain values."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"command": command, **here(frameworks), "seed": seed}


def here(frameworks: Sequence[str] = FRAMEWORKS) -> Mapping[str, Any]:
    """The environment of any run here with these frameworks, without settings of one that is not
    installed.
    """
    precision = effective_precision(frameworks)
    # Both start processes. An interrupt is raised on the main thread, where `subprocess.run` may
    # leave its process behind; another thread waits for it, and the block waits for the thread.
    with ThreadPoolExecutor(1) as apart:
        apart.submit(int).result()  # one that arrives while a thread starts loses the thread
        revision, own = apart.submit(commit).result(), apart.submit(own_commit).result()
        system = apart.submit(platform.platform).result()
    return {
        "commit": revision,
        "parity_commit": own,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "platform": system,
        "cores": os.cpu_count(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        **(_of_torch() if "torch" in precision else {}),
        **(_of_jax() if "jax" in precision else {}),
        **{f"{name}_effective_precision": found for name, found in precision.items()},
    }


def _of_torch() -> Mapping[str, Any]:
    import torch

    # a reference that is elsewhere is refused
    return {"torch_device": "cpu", "torch_threads": torch.get_num_threads()}


def _of_jax() -> Mapping[str, Any]:
    import jax

    return {
        "jax_device": str(next(iter(jax.numpy.zeros(()).devices()))),
        "jax_devices": ", ".join(device.device_kind for device in jax.devices()),
        "jax_default_matmul_precision": str(jax.config.values["jax_default_matmul_precision"]),
        "jax_enable_x64": bool(jax.config.values["jax_enable_x64"]),
    }


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names with a dot between them, and values that are no mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in flat(value))
        else:
            yield name, value


def effective_precision(frameworks: Sequence[str] = FRAMEWORKS) -> Mapping[str, str]:
    """The measured precision of a product of float32 arrays at default settings, by each of these
    frameworks that is installed.
    """
    probes = {"jax": probe.of_jax, "torch": probe.of_torch}
    return {name: probes[name]() for name in frameworks if find_spec(name)}


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that the process runs in, `-dirty` if it has changes.

    This and the next are asked once: what runs is the code that this process has imported.
    """
    return _described(Path.cwd())


@functools.cache
def own_commit() -> str | None:
    """The commit of the checkout that this file is in."""
    here = Path(__file__).resolve()
    return _described(here.parent, here.name)


def _described(folder: Path, file: str = "") -> str | None:
    """The commit, if there is a checkout and the `file`, if one is named, is part of it."""
    try:
        if file:  # an installed copy may lie inside somebody else's checkout
            _git(folder, "ls-files", "--error-unmatch", file)
        return _git(folder, "describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
