"""The key of a recorded case: one for everything that decides what the reference does in it."""

import hashlib
import os
import platform
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.cache.code import Unknown, foreign
from parity.cache.fingerprint import Fingerprint
from parity.core.pair import Case

VARIABLES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "TORCH_")
"""How environment variables begin that change how PyTorch computes."""

_SEES_HOOKS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder,
               torch.nn.TransformerEncoderLayer)  # fmt: skip
"""Modules that round otherwise while somebody listens to those inside them."""


def key_of(
    module: torch.nn.Module,
    case: Case,
    layout: Mapping[str, str],
    seed: int,
    inside: Collection[str] | None,
) -> str:
    """64 hexadecimal digits for a call of `module` in which the calls `inside` are recorded.

    Raises:
        Unknown: something counts of which nobody can say what it is.
    """
    modules = torch.nn.modules.module
    listening = (modules._global_forward_hooks, modules._global_forward_pre_hooks)
    if any(listening):
        raise Unknown("hooks are registered on all modules")
    found = Fingerprint()
    for value in (_machine(), _settings(), _replaced(), case.path, case.torch, seed, dict(layout),
                  None if inside is None else sorted(inside)):  # fmt: skip
        found.add(value, "a setting")
    found.add(module, "the reference")
    found.add([case.args, dict(case.kwargs)], "an argument")
    return found.hex


def sees_hooks(module: torch.nn.Module) -> bool:
    """Whether what it computes depends on which modules somebody listens to."""
    return any(isinstance(one, _SEES_HOOKS) for one in module.modules())


@cache
def _machine() -> list[Any]:
    """What stays as it is in one process."""
    lines = ("model name", "flags")
    cpu = Path("/proc/cpuinfo")
    told = cpu.read_text().splitlines() if cpu.exists() else []
    return [
        _own_code(),
        sys.version,
        np.__version__,
        torch.__version__,
        torch.version.git_version,
        torch.__config__.show(),
        platform.platform(),
        platform.machine(),
        sorted({line for line in told if line.startswith(lines)}),
    ]


def _replaced() -> list[dict[str, Any]]:
    """Functions of PyTorch that somebody has put others in the place of, for the whole process."""
    homes = (torch, torch.Tensor, torch.nn, torch.nn.functional, torch.fft, torch.linalg,
             torch.special)  # fmt: skip
    return [foreign(vars(home)) for home in homes]


def _own_code() -> str:
    """A digest of this package: what records decides what is recorded."""
    home = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        total.update(f"{path.relative_to(home)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def _settings() -> dict[str, Any]:
    """What somebody may have set in this process."""
    backends = torch.backends
    return {
        "variables": sorted(x for x in os.environ.items() if x[0].startswith(VARIABLES)),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        ),
        "precision": [
            str(getattr(home, "fp32_precision", None))
            for home in (
                backends,
                *(getattr(backends.mkldnn, name, None) for name in ("conv", "matmul", "rnn")),
            )
        ],
        "mkldnn": (backends.mkldnn.enabled, getattr(backends.mkldnn, "deterministic", None)),
        "einsum": (backends.opt_einsum.enabled, backends.opt_einsum.strategy),
        "cpu": backends.cpu.get_cpu_capability(),
        "attention": (
            torch._C._get_math_sdp_enabled(),
            torch._C._get_flash_sdp_enabled(),
            torch._C._get_mem_efficient_sdp_enabled(),
            backends.mha.get_fastpath_enabled(),
        ),
        "flush": torch.tensor(1e-40).mul(1.0).item(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "inference": torch.is_inference_mode_enabled(),
        "modes": [type(mode).__qualname__ for mode in _modes()],
    }


def _modes() -> list[Any]:
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    functions: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return [*functions, *_get_current_dispatch_mode_stack()]
