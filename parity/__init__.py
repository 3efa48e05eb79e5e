"""A profiler for numerical error between a PyTorch module and its Flax NNX port."""

from typing import TYPE_CHECKING, Any

from parity.core.exceptions import InputError, not_installed

if TYPE_CHECKING:
    from parity.capture.functional import Functional
    from parity.capture.taps import tap
    from parity.core.pair import Case, Mistake, Offline, Option, Pair, PairOptions, Rung
    from parity.core.tensors import Fused, Stacked, Weight
    from parity.core.verdicts import Coverage, Fault, Row
    from parity.host.progress import Progress
    from parity.pipeline import compare, run_pair
    from parity.report import Report
    from parity.selftest.mistakes import behaviour

    __version__: str

__all__ = ["Case", "Coverage", "Fault", "Functional", "Fused", "InputError", "Mistake", "Offline"]
__all__ += ["Option", "Pair", "PairOptions", "Progress", "Report", "Row", "Rung", "Stacked"]
__all__ += ["Weight", "behaviour", "compare", "run_pair", "tap"]

_HOMES = {
    **dict.fromkeys(("compare", "run_pair"), "pipeline"),
    "Functional": "capture.functional",
    "tap": "capture.taps",
    **dict.fromkeys(
        ("Case", "Mistake", "Offline", "Option", "Pair", "PairOptions", "Rung"), "core.pair"
    ),
    **dict.fromkeys(("Fused", "Stacked", "Weight"), "core.tensors"),
    **dict.fromkeys(("Coverage", "Fault", "Row"), "core.verdicts"),
    "Progress": "host.progress",
    "Report": "report",
    "behaviour": "selftest.mistakes",
}


def __getattr__(name: str) -> Any:
    # torch and jax take seconds to import: only when they are needed
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        return version("nnx-parity")
    if name in _HOMES:
        try:
            home = import_module(f"parity.{_HOMES[name]}")
        except ImportError as error:
            if text := not_installed(error):
                raise InputError(f"parity.{name}: {text}") from error
            raise
        found = globals()[name] = getattr(home, name)
        return found
    raise AttributeError(f"module 'parity' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
