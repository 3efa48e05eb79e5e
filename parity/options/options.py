"""What is asked of a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass

from parity.core.globs import Pending, rooted
from parity.core.pair import Rung
from parity.core.tensors import Fused, Stacked

MODES = ("free", "exclusive", "inclusive")

GRAD = "grad"
"""The mode that compares gradients, beside the others or alone."""


@dataclass(frozen=True)
class Rules:
    """What is asked of every case of a run."""

    rungs: tuple[Rung, ...] = ()
    declared: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    layout: Mapping[str, str] | None = None
    modes: tuple[str, ...] = MODES
    weights: tuple[Fused | Stacked, ...] = ()
    tied: Mapping[str, str] | None = None
    """Which tensors several modules of the reference share: see `weights.tied`."""
    leaves: tuple[str, ...] = ()
    """Globs of `path#leaf` that must match an output."""
    pending: tuple[Pending, ...] = ()
    """Globs that must match a tap."""
    emulate: str | None = None
    disable_jit: bool = False
    """Whether the port runs operation by operation, not in the programs that it compiles."""
    only: tuple[str, ...] = ()
    """Globs of the reference's paths: what they match, with what is inside it, is all there is."""
    depth: int | None = None
    """How many levels of modules are looked into."""
    repro: bool = False
    """Whether the call of the first fault is kept."""

    def __post_init__(self) -> None:
        """Take the root by the name that reports give it."""
        for name in ("declared", "rename", "layout", "leaves", "only"):
            object.__setattr__(self, name, rooted(getattr(self, name)))
