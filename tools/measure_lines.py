"""Counts the mistakes whose line is found: the table of docs/how-it-works.md.

python -m tools.measure_lines           by the lines alone
python -m tools.measure_lines causes    two mistakes in one forward, compared
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np

import conftest  # noqa: F401  # settings of the tests, before JAX is imported
from parity.core.lines import SourceLine
from parity.lines.whole_programs import Alignment, align
from tests.faultzoo.zoo import CASES, nets
from tests.lines import attention, drawn
from tests.reports import compare
from tools.tables import publish

HEAD = ("programs", "mistakes", "line found", "line first", "right programs", "alarms")
CAUSES_HEAD = ("programs", "pairs of mistakes", "both with cause and line")
HEADS = (HEAD, CAUSES_HEAD)
DRAWN = 60
PAIRS = 20


def _aligned(programs: Sequence[Any]) -> Alignment:
    reference, port, x = programs
    return align(reference, port, (x,), (x,))


def _near(shown: Sequence[SourceLine], lines: Sequence[int]) -> bool:
    return any(abs(x.line - y) <= 1 for x in shown for y in lines)


def _row(
    title: str, wrong: Iterator[tuple[Alignment, Sequence[int]]], right: Iterator[Alignment]
) -> tuple[object, ...]:
    """Counts for mistakes with their lines, and for programs without any."""
    found = [(made.partings, lines) for made, lines in wrong if made.partings]
    shown = [([x for one in partings for x in one.port], lines) for partings, lines in found]
    heads = [([x for one in partings for x in one.port[:1]], lines) for partings, lines in found]
    among, first = (sum(_near(*one) for one in places) for places in (shown, heads))
    fine = list(right)
    return title, len(found), among, first, len(fine), sum(bool(x.partings) for x in fine)


def _attention(fused: bool) -> tuple[object, ...]:
    wrong = (
        (_aligned(attention.nets(fused, name)), attention.marked(attention.__file__, name))
        for name in attention.MISTAKES
    )
    title = (
        "attention, the reference's fused" if fused else "attention, the reference's written out"
    )
    return _row(title, wrong, iter([_aligned(attention.nets(fused))]))


def _drawn_pairs() -> Iterator[tuple[str, str]]:
    both = [pair for pair in combinations(attention.MISTAKES, 2) if pair not in attention.ONE]
    yield from (both[i] for i in np.random.default_rng(1).permutation(len(both))[:PAIRS])


def _named(fused: bool, pair: tuple[str, str]) -> bool:
    """True if two faults have the causes of two mistakes, each with its line."""
    reference, port, x = attention.nets(fused, *pair)
    faults = [one for one in compare(reference, port, (x,)).faults if one.lines]
    first, second = (
        {
            at
            for at, one in enumerate(faults)
            if one.cause == attention.CAUSES[name]
            and _near(one.lines.port, attention.marked(attention.__file__, name))
        }
        for name in pair
    )
    return bool(first and second) and len(first | second) > 1


def _causes(fused: bool) -> tuple[object, ...]:
    found = [_named(fused, pair) for pair in _drawn_pairs()]
    form = "fused" if fused else "written out"
    return f"attention, the reference's {form}", len(found), sum(found)


def _pairs() -> tuple[object, ...]:
    """A row of each mistake of two in one forward."""

    def wrong() -> Iterator[tuple[Alignment, Sequence[int]]]:
        for pair in _drawn_pairs():
            made = _aligned(attention.nets(False, *pair))
            yield from ((made, attention.marked(attention.__file__, name)) for name in pair)

    return _row(f"attention, {PAIRS} drawn pairs of mistakes in one forward", wrong(), iter(()))


def _drawn(folder: Path) -> tuple[object, ...]:
    def made(seed: int, mistake: bool) -> tuple[Alignment, Sequence[int]]:
        one = drawn.draw(1000 + seed, mistake)
        return _aligned(drawn.programs(one, folder)), [one.wrong]

    wrong = (made(seed, True) for seed in range(DRAWN))
    return _row("programs of ten drawn lines", wrong, (made(x, False)[0] for x in range(DRAWN)))


def _zoo() -> tuple[object, ...]:
    """A row of the right nets of the zoo of the tests."""

    def right() -> Iterator[Alignment]:
        for one in CASES:
            reference, port, x = nets(one, False, 0)
            yield align(reference, port, (x,), (np.moveaxis(x, 1, -1),))

    return _row("nets of `tests/faultzoo/`", iter(()), right())


@click.command()
@click.argument("what", type=click.Choice(["lines", "causes"]), default="lines")
def main(what: str) -> None:
    """Measure, and write the table."""
    if what == "causes":
        publish(CAUSES_HEAD, map(_causes, (False, True)))
        return
    rows: list[Callable[[], tuple[object, ...]]] = [
        lambda: _attention(False),
        lambda: _attention(True),
        _pairs,
        _zoo,
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = [*(row() for row in rows), _drawn(Path(folder))]
    publish(HEAD, found, "A mistake counts where it changes the output.")


if __name__ == "__main__":
    main()
