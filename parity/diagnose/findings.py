"""Records of what a diagnosis found, and of the run that it goes by."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from parity.core.calls import Match
from parity.core.lines import Lines
from parity.core.verdicts import Diagnosis


class Kept(Protocol):
    """One run of a call on each side, operation by operation."""

    @property
    def lines(self) -> tuple[Lines, ...]:
        """The lines of each mistake."""
        ...

    def on_one_side(self, opened: Collection[Match]) -> bool:
        """True if all mistakes are in the code of these calls, which are laid open, or all
        elsewhere, if there are any, and mending them leaves none.
        """
        ...


@dataclass(frozen=True)
class Finding:
    """A mistake in a call: its cause, its lines, and which of the arrays that leave the call, by
    its `order` and name, it makes wrong, none if that is all that are.
    """

    diagnosis: Diagnosis
    lines: Lines | None = None
    keys: tuple[tuple[int, str], ...] = ()
