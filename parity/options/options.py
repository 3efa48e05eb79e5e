"""Options of a run, as every stage reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.core.globs import rooted
from parity.core.pair import Pair, Rung
from parity.core.tensors import Fused, Stacked
from parity.core.time_limit import TimeLimit


@dataclass(frozen=True)
class Options:
    """Options that hold for every case of a run; names are those of `parity.compare`.

    `declared` is what `ignore` names, and what a pair declares, with the reason.
    """

    rungs: tuple[Rung, ...] = ()
    declared: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    layout: Mapping[str, str] | None = None
    fused: tuple[Fused | Stacked, ...] = ()
    leaves: tuple[str, ...] = ()
    """Globs of `path#leaf` that must match an output."""
    pending: Mapping[str, Callable[[Sequence[str]], None]] = field(default_factory=dict)
    """By option, a check of its globs that match no name: with the taps, which only a run shows."""
    emulate: str | None = None
    eager: bool = False
    """The port runs operation by operation, not in the programs that it compiles."""
    only: tuple[str, ...] = ()
    """Globs of the reference's paths: what they match, with what is inside it, is all there is."""
    depth: int | None = None
    """Levels of modules that are looked into; `None` for all."""
    gradients: bool = False
    diagnosis: TimeLimit = field(default_factory=TimeLimit)
    """Seconds in which causes are looked for."""
    making: Callable[[], str] | None = None
    """Source that makes the port, for a script of the first fault; `None` if none is kept."""

    @classmethod
    def of(cls, pair: Pair, **more: Any) -> "Options":
        """What a pair says, and more."""
        said = ("rungs", "declared", "rename", "layout", "fused")
        return cls(**{**{name: getattr(pair, name) for name in said}, **more})

    def __post_init__(self) -> None:
        """Take the root by the name that reports give it."""
        for name in ("declared", "rename", "layout", "leaves", "only"):
            object.__setattr__(self, name, rooted(getattr(self, name)))
