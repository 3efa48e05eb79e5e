"""Excerpts of the source of both sides, beside each other, where a fault is."""

from itertools import zip_longest
from textwrap import dedent

from parity.core.exceptions import escaped
from parity.core.lines import Lines, SourceLine

COLUMN = 48
"""Characters of each side's column in a text."""

Row = tuple[int, str, bool]
"""Number and text of a line, and whether it is the one meant."""


def excerpt(line: SourceLine) -> list[Row]:
    """The line with those around it, as far to the left as they go."""
    first = line.line - len(line.before)
    texts = dedent("\n".join((*line.before, line.text, *line.after)).expandtabs(4)).split("\n")
    return [(first + at, text, first + at == line.line) for at, text in enumerate(texts)]


def side_by_side(lines: Lines) -> list[str]:
    """The first line of each side with those around it, then where the others are."""
    sides = [_column("port", lines.port), _column("reference", lines.reference)]
    return [beside(*row) for row in zip_longest(*sides, fillvalue="")]


def beside(left: str, right: str) -> str:
    """A row of two columns, each cut to its width."""
    return f"{_cut(left):<{COLUMN}}  {_cut(right)}".rstrip()


def _column(side: str, lines: tuple[SourceLine, ...]) -> list[str]:
    if not lines:
        return [f"{side}: no line of its own code"]
    first, *others = lines
    rows = excerpt(first)
    width = len(str(rows[-1][0]))
    shown = [f"{'>' if meant else ' '} {number:>{width}} {text}" for number, text, meant in rows]
    more = [f"  and {line.place}: {line.operation}" for line in others]
    return [f"{side} {first.place}: {first.operation}", *shown, *more]


def _cut(text: str) -> str:
    text = escaped(text)
    return text if len(text) <= COLUMN else f"{text[: COLUMN - 3]}..."
