"""Limits on R by kind of module, each with the measurement that justifies it.

`tools/measure_r.py` repeats the measurements; `docs/thresholds.md` says how they were made.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RLimit:
    """Limits for the modules whose class name ends in one of `words`, in lower case, or in one of
    them and a number of dimensions.

    R above `warn` is a WARN, above `fail` a FAIL.
    """

    family: str
    words: tuple[str, ...]
    warn: float
    fail: float
    why: str

    def as_markdown(self) -> str:
        """A line of a table."""
        named = [f"`*{word}`" for word in self.words if word]
        classes = " or ".join(named) or "any other"
        return f"| {self.family} | {classes} | {self.warn:g} | {self.fail:g} | {self.why} |"


TABLE = (
    RLimit(
        "norm",
        ("norm", "normalization"),
        warn=10.0,
        fail=30.0,
        why="a correct two-pass group norm of a nearly constant input reaches 12, "
        "the variance in one pass starts at 300",
    ),
    RLimit(
        "other",
        ("",),
        warn=3.0,
        fail=10.0,
        why="correct convolutions, products, attention and activations stay below 1, healthy "
        "calls of the fault zoo below 3; mistakes start at 300, products in bfloat16 at 5000",
    ),
)
"""The first line that fits a class name holds; the last one fits all."""


def fail_limit(kind: str) -> float:
    """R above this fails."""
    return r_limit(kind).fail


def r_limit(kind: str) -> RLimit:
    """The limits that hold for a module class."""
    name = kind.lower().rstrip("0123456789d")  # BatchNorm2d, SpatialNorm3D
    return next(line for line in TABLE if any(name.endswith(word) for word in line.words))
