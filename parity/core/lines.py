"""Records of source lines: where in the code of both sides two programs part."""

from collections.abc import Collection
from dataclasses import dataclass

MOST = 5
"""How many lines a side has at most."""


@dataclass(frozen=True)
class SourceLine:
    """A line of a user's file, `file` relative to the working directory where it is below it.

    `operation` is what the line does there that the other side does not. `before` and `after` are
    up to two lines around it.
    """

    file: str
    line: int
    text: str
    operation: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """File and line, as editors and terminals open them."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Lines:
    """The lines at which the port and the reference part, of each side the likeliest first.

    A side is empty where its code is a library's alone.
    """

    port: tuple[SourceLine, ...] = ()
    reference: tuple[SourceLine, ...] = ()

    def joined(self, more: "Lines") -> "Lines":
        """The lines of both, those of `more` last, each place once."""
        return Lines(_joined(self.port, more.port), _joined(self.reference, more.reference))

    def without(self, places: Collection[str]) -> "Lines":
        """The lines of each side that are at none of these places; all, if none is left."""
        sides = (self.port, self.reference)
        return Lines(*(tuple(x for x in own if x.place not in places) or own for own in sides))


def _joined(one: tuple[SourceLine, ...], more: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    places = {line.place for line in one}
    return (*one, *(line for line in more if line.place not in places))[:MOST]
