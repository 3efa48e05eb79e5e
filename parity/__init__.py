"""A profiler for numerical error between a PyTorch module and its Flax NNX port."""

from typing import TYPE_CHECKING, Any

from parity.core.exceptions import InputError

if TYPE_CHECKING:
    from parity.capture.functional import Functional
    from parity.capture.taps import tap
    from parity.core.pair import Case, Mistake, Offline, Option, Pair, Rung
    from parity.core.tensors import Fused, Stacked
    from parity.pipeline import compare, run_pair
    from parity.report import Report

__all__ = [
    "Case", "Functional", "Fused", "InputError", "Mistake", "Offline", "Option", "Pair", "Report",
    "Rung", "Stacked", "compare", "run_pair", "tap",
]  # fmt: skip

_HOMES = {
    "compare": "parity.pipeline",
    "run_pair": "parity.pipeline",
    "Report": "parity.report",
    "Functional": "parity.capture.functional",
    "tap": "parity.capture.taps",
    **dict.fromkeys(("Case", "Mistake", "Offline", "Option", "Pair", "Rung"), "parity.core.pair"),
    **dict.fromkeys(("Fused", "Stacked"), "parity.core.tensors"),
}


def __getattr__(name: str) -> Any:
    # torch and jax take seconds to import: only when they are needed
    if name in _HOMES:
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'parity' has no attribute {name!r}")
