"""Excerpts of the source of both sides, beside each other, where a fault is."""

from itertools import zip_longest
from textwrap import dedent

from parity.core.exceptions import escaped
from parity.core.lines import Lines, SourceLine

WIDTH = 100
"""Characters of a text with both sides beside each other, where nothing else is said."""

Row = tuple[int, str, bool]
"""Number and text of a line, and whether it is the one meant."""


def excerpt(line: SourceLine) -> list[Row]:
    """The line with those around it, as far to the left as they go."""
    first = line.line - len(line.before)
    texts = dedent("\n".join((*line.before, line.text, *line.after)).expandtabs(4)).split("\n")
    return [(first + at, text, first + at == line.line) for at, text in enumerate(texts)]


def side_by_side(lines: Lines, width: int | None = None) -> list[str]:
    """The first line of each side with those around it, then where the others are.

    The sides are one under the other where the lines meant do not fit beside each other; without a
    `width` nothing of them is cut then.
    """
    sides = [_column("port", lines.port), _column("reference", lines.reference)]
    total = width or WIDTH
    meant = [row for side in sides for row in side if not row.startswith("  ")]
    if max(map(len, meant)) <= total // 2 - 1:
        return [beside(left, right, total) for left, right in zip_longest(*sides, fillvalue="")]
    rows = [row for side in sides for row in side]
    return [_cut(row, width) if width else escaped(row) for row in rows]


def beside(left: str, right: str, width: int = WIDTH) -> str:
    """A row of two columns, each cut to its half of the width."""
    column = width // 2 - 1
    return f"{_cut(left, column):<{column}}  {_cut(right, column)}".rstrip()


def _column(side: str, lines: tuple[SourceLine, ...]) -> list[str]:
    if not lines:
        return [f"{side}: no line of its own code"]
    first, *others = lines
    rows = excerpt(first)
    width = len(str(rows[-1][0]))
    shown = [f"{'>' if meant else ' '} {number:>{width}} {text}" for number, text, meant in rows]
    more = [f"  and {line.place}: {line.operation}" for line in others]
    return [f"{side} {first.place}: {first.operation}", *shown, *more]


def _cut(text: str, width: int) -> str:
    text = escaped(text)
    return text if len(text) <= width else f"{text[: width - 3]}..."
