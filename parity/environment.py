"""What a figure depends on besides the code: recorded in every report."""

import importlib.metadata
import itertools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity import probe

if TYPE_CHECKING:
    import torch

PACKAGES = ("jaxvae", "jax", "jaxlib", "flax", "torch", "diffusers", "numpy", "safetensors")


def describe(seed: int, reference: "torch.nn.Module") -> Mapping[str, Any]:
    """Command, commit, versions, devices, precision and seed, as plain values.

    PyTorch's device is the one that holds `reference`.
    """
    import jax
    import torch

    precision = effective_precision()
    held = next(itertools.chain(reference.parameters(), reference.buffers()), torch.zeros(()))
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch_device": str(held.device),
        "jax_device": str(next(iter(jax.numpy.zeros(()).devices()))),
        "jax_default_matmul_precision": str(jax.config.values["jax_default_matmul_precision"]),
        "jax_enable_x64": bool(jax.config.values["jax_enable_x64"]),
        "torch_allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "jax_effective_precision": precision["jax"],
        "torch_effective_precision": precision["torch"],
        "seed": seed,
    }


def effective_precision() -> Mapping[str, str]:
    """What a product of float32 arrays at default settings really is, measured, by framework."""
    return {"jax": probe.of_jax(), "torch": probe.of_torch()}


def commit() -> str | None:
    """The commit of the checkout that this file is in, `-dirty` if it has changes."""
    here = Path(__file__).resolve()
    try:
        # an installed copy may lie inside somebody else's checkout
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
