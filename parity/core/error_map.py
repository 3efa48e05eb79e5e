"""The record of where in an array a fault's error lies; `diagnose.error_map` makes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Along:
    """The error along one axis of an array: root mean squares over all other axes.

    Of an axis of `size` entries that are too many, each is the largest among neighbours.
    """

    axis: str
    size: int
    errors: tuple[float, ...]


EDGES = tuple(10.0 ** (half / 2) for half in range(-20, 5))
"""Where the bins of an error map's histogram meet: half powers of ten from 1e-10 to 1e2."""


@dataclass(frozen=True)
class ErrorMap:
    """Places and sizes of the error in one array of a call.

    The array is output `leaf`, or, where `to` is the path of a call inside, that argument of it.
    `free` says that the port ran alone, so that what went wrong before is part of the error. Errors
    are those of |port - reference| in units of `unit`, the root mean square of the reference (1
    where that is 0).

    `along` has the axes, `worst` says which image (the last two axes before the channels) is the
    worst, such as "item 0, frame 3", and `heat` is this image: the root mean square over channels,
    of each cell the largest. Its axes are `heat_axes`, its full size `heat_size`. `counts` are how
    many entries are equal, how many differ by less than the first of `EDGES`, between the
    first and the second, and so on, then how many by the last or more, or in being finite.
    """

    leaf: str
    to: str
    free: bool
    unit: float
    along: tuple[Along, ...]
    worst: str
    heat_axes: tuple[str, str]
    heat_size: tuple[int, int]
    heat: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        rows = {len(row) for row in self.heat}
        if not self.along or len(rows) != 1 or len(self.counts) != len(EDGES) + 2:
            raise ValueError("no error map: it has axes, a picture, and a count for each bin")
