"""What a diagnosis finds in one call."""

from dataclasses import dataclass

from parity.core.lines import Lines
from parity.core.verdicts import Diagnosis


@dataclass(frozen=True)
class Finding:
    """A mistake in a call: its cause, its lines, and which of the arrays that leave the call it
    makes wrong, by the order of a call and the leaf; none if that is all that are.
    """

    diagnosis: Diagnosis
    lines: Lines | None = None
    keys: tuple[tuple[int, str], ...] = ()
