"""Problems: why two things differ or could not be compared. The kind decides, people read the text.

No comparison of models looks at what a text says, so that rewording a message changes no verdict.
What is read from a report's file is found by its texts: `report/cells.py` takes a side from one,
`report/read.py` what is idle.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

Side = Literal["", "reference", "port"]


class ProblemKind(Enum):
    """The kinds of problems; all but those of `DIFFERENT` say that something is not known."""

    SHAPE = "arrays of other shapes"
    DTYPE = "arrays of another class of types"
    VALUE = "other values, compared exactly"
    FEWER_BITS = "values that the reference alone rounds to fewer bits"
    NONFINITE = "entries that are NaN or infinite on one side only"
    ERROR = "an error over its limit"
    OPAQUE = "neither an array nor a plain value"
    PORT_LACKS = "a leaf of the reference alone"
    REF_LACKS = "a leaf of the port alone"
    NOT_MEASURED = "an error that was not or could not be measured"


DIFFERENT = (ProblemKind.SHAPE, ProblemKind.DTYPE, ProblemKind.VALUE)
"""Kinds that tell without any error that two leaves are not the same."""


@dataclass(frozen=True)
class Problem:
    """A kind, by which code decides, and a text, which only people read."""

    kind: ProblemKind
    text: str

    def __str__(self) -> str:
        return self.text

    def then(self, text: str) -> "Problem":
        """The problem with more to say of it."""
        return replace(self, text=f"{self.text}{text}")


PORT_LACKS = Problem(ProblemKind.PORT_LACKS, "the port does not return it")
REF_LACKS = Problem(ProblemKind.REF_LACKS, "only the port returns it")


def not_measured(why: str) -> Problem:
    """The problem of an error that could not be measured."""
    return Problem(ProblemKind.NOT_MEASURED, why)


def other_shape(ref: tuple[int, ...], port: tuple[int, ...]) -> Problem:
    """The problem of arrays that cannot be subtracted."""
    return Problem(ProblemKind.SHAPE, f"shape {port} instead of {ref}")


def other_value(ref: object, port: object) -> Problem:
    """The problem of plain values that are not equal."""
    return Problem(ProblemKind.VALUE, f"value {port!r} instead of {ref!r}")
