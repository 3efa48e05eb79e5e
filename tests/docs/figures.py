"""A figure of a document: the words around it, the command that made it, and what holds it.

`text` is the passage as it stands in the document, line ends aside. A `{}` in it stands for a
number that is compared; numbers that stand in the passage itself must stand there to the digit.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tests.docs.documents import DOCUMENTS, FENCE, ROOT, SPAN

PAGES = (*(name for name in DOCUMENTS if name != "docs/api.md"), "tests/data/small-vae/README.md")

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"

WORDS = {
    word: number
    for number, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 2
    )
}
"""Numbers that a `{}` may stand for too: "four times more"."""

UNITS = (
    r"[kKMGT]i?B/s|[GT]FLOPs?(?:/s)?|ns|us|[µμ]s|ms|s|secs?|mins?|hrs?|h|fps|[kKMGT]i?B|dB"
    r"|%|percent|per cent|(?:nano|micro|milli)?seconds?|minutes?|hours?|times|x(?!\s*\d)"
    r"|roundings|parameters|cases|rows|tests|M"
)
IS = r"(?:is|was|of|at most|at least|near|about|above|below|over|under|up to|reaches)"
MEASURED = re.compile(
    r"(?<![\w.])\d+(?:\.\d+)?e[+-]?\d+\b"  # 4e-7
    r"|(?<![\w.-])\d+\.\d+(?!\.?\d)"  # a fraction, but no version of three parts
    rf"|{NUMBER}\s*(?:{UNITS})(?!\w)"
    rf"|\bR(?:\s*[=<>≤≥]+\s*|\s+(?:{IS}\s+)?)\d"  # R 5, R <= 5, R is 5
    r"|\b\d+ (?:out )?of (?:them )?\d+\b"  # 5 of 5 calls
    r"|\|\s*\**[-+]?\d[\d,]*\**\s*(?=\|)"  # a cell of a table
    r"|\b(?:an?|half an?|half|(?:third|quarter|tenth|hundredth|thousandth) of an?)"
    r" (?:nano|micro|milli)second\b"
)
"""What looks like a measurement. Whole numbers without a unit of these are not seen, nor are
numbers in words, but for parts of a second."""


@dataclass(frozen=True)
class Figure:
    """A measurement. Exactly one of `values`, `test` and `once` holds it.

    `values` reads the numbers of `{}` from what the command wrote (a file of `reports`, or a
    `console` block, which tests run): each must be that, rounded to the digits that it has.
    `test` is one that measures it anew, and `bound` its code that says how far off it may be; it
    reads the document, or the number is in `bound` to a factor of two. `once` says when it was
    measured, of what cannot be measured again; the document says it too.

    `same` computes the numbers of `{}` from other words or a table of the documents. That is
    consistency and holds nothing: `test` or `once` is then what holds those words, and `of` the
    document that has them, where it is another one.
    """

    document: str
    text: str
    command: str
    values: Callable[[], Sequence[float]] | None = None
    test: str = ""
    bound: str = ""
    once: str = ""
    same: Callable[[], Sequence[float]] | None = None
    of: str = ""


@dataclass(frozen=True)
class Definition:
    """A number that nobody measured: `values` are constants of the code, or `why` tells."""

    document: str
    text: str
    values: tuple[float, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Table:
    """The first table below some words, every row of which `test` measures anew, as of a figure.

    That test is slow. `quick` measures some of the rows in every run of the suite. `once` says when
    the columns were measured that no test measures.
    """

    document: str
    below: str
    command: str
    test: str
    bound: str
    quick: str
    once: str = ""


@dataclass(frozen=True)
class Lines:
    """Whole lines of a document that a command wrote: `lines` makes them again."""

    document: str
    command: str
    lines: Callable[[], Sequence[str]]


def passage(text: str) -> re.Pattern[str]:
    """Finds a passage wherever its lines end; a group for every `{}`."""
    number = f"({NUMBER}|{'|'.join(WORDS)})"
    words = [re.escape(word).replace(r"\{\}", number) for word in text.split()]
    return re.compile(r"(?<![\w.])" + r"\s+".join(words) + r"(?!\w|\.\d)")


def read(document: str) -> str:
    """The text of a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def near(shown: str, value: float) -> bool:
    """Whether a number is what `value` is when it is rounded to as many digits."""
    number = Decimal(WORDS.get(shown, shown.replace(",", "")))
    digit = 10.0 ** int(number.as_tuple().exponent)
    return abs(float(number) - value) <= 0.5001 * digit


def section(text: str, place: int) -> str:
    """What a reader has seen of commands: the section around a place, and the page's beginning."""
    heads = [match.start() for match in re.finditer(r"^##+ ", text, re.M)]
    start = max((head for head in heads if head <= place), default=0)
    end = min((head for head in heads if head > place), default=len(text))
    return text[: heads[0] if heads else len(text)] + text[start:end]


def unregistered(text: str, passages: Sequence[str], lines: Sequence[str]) -> Iterator[str]:
    """Every measurement that neither is in a passage or a line nor printed by a block that runs."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"\S", " ", match[0])

    known = set(lines)
    text = "\n".join("" if line in known else line for line in text.split("\n"))
    for one in passages:
        text = passage(one).sub(blank, text)
    text = FENCE.sub(lambda match: blank(match) if match[1] else match[0], text)
    text = SPAN.sub(blank, text)
    text = re.sub(r"\]\([^)]*\)|<!--.*?-->", blank, text, flags=re.S)
    for match in MEASURED.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"line {line}: {' '.join(match[0].split())!r}"
