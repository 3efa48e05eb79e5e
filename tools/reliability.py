"""Runs the hostile corpus: the table of docs/reliability.md.

python -m tools.reliability
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import conftest  # noqa: F401  # settings of the tests, before JAX is imported
from tests.hostile import corpus, stock
from tests.hostile.case import Outcome, run
from tools.tables import publish

TITLES = {
    "checkpoint": "checkpoints: safetensors, indices, shards",
    "config": "`config.json`",
    "video": "videos and arrays of frames",
    "latent": "latents, and weights that are not finite",
    "report": "reports for `diff` and `show`",
    "trace": "golden traces for `check`",
    "maker": "what commands are pointed at, and their options",
    "module": "modules, and arguments of `parity.compare`",
}

HEAD = ("input", "cases", "refused with one line", "right verdict, or legal", "own error", "failed")
HEADS = (HEAD,)


def outcomes() -> list[Outcome]:
    """How every case ends."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        good = Path(name, "stock")
        good.mkdir()
        stock.fill(good)
        return [run(one, good, Path(name, str(i))) for i, one in enumerate(corpus.CASES)]


def rows(found: Sequence[Outcome]) -> Iterator[tuple[object, ...]]:
    """A row for each kind of input, and one for all."""
    for kind in [*dict.fromkeys(one.case.kind for one in found), ""]:
        of = [one for one in found if kind in ("", one.case.kind)]
        counts = Counter(_ending(one) for one in of)
        figures = (counts[name] for name in ("refused", "verdict", "raised", "failed"))
        yield TITLES[kind] if kind else "**all**", len(of), *figures


def _ending(one: Outcome) -> str:
    if one.problems:
        return "failed"
    if one.ended == 2:
        return "refused"
    return "raised" if isinstance(one.ended, type) else "verdict"


@click.command()
def main() -> None:
    """Run all cases; exits with 1 if one failed."""
    found = outcomes()
    publish(HEAD, rows(found))
    failed = [one for one in found if one.problems]
    for one in failed:
        click.echo(f"{one.case.kind}: {one.case.name}: {one.problems[0]}", err=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
