"""Counts false verdicts and misplaced faults of networks that are drawn at random.

python -m tools.measure_drawn --right 500 --wrong 500 --seed 0
"""

import sys
from collections import Counter

import click

import conftest  # noqa: F401  # settings of the tests, before JAX is imported
from tests.drawn.nets import Outcome, outcome


def _false(one: Outcome, mistake: bool) -> bool:
    return one.verdict != ("FAIL" if mistake else "PASS") or (mistake and not one.placed)


@click.command()
@click.option("--right", default=50, show_default=True, help="How many right ports.")
@click.option("--wrong", default=50, show_default=True, help="How many with one mistake.")
@click.option("--seed", default=0, show_default=True, help="The seed of the first.")
def main(right: int, wrong: int, seed: int) -> None:
    """Compare drawn networks; exits with 1 if a verdict is false or a fault misplaced."""
    failed = 0
    for title, number, mistake in (("right", right, False), ("wrong", wrong, True)):
        found = [outcome(one, mistake) for one in range(seed, seed + number)]
        false = [one for one in found if _false(one, mistake)]
        for one in false:
            click.echo(f"{title} {one.seed}: {one.verdict}: {one.text[:300]}", err=True)
        counts = ", ".join(f"{n} {name}" for name, n in Counter(x.verdict for x in found).items())
        placed = (
            f", {sum(one.placed for one in found)} at the place and"
            f" {sum(one.inlined for one in found)} at the module with which it counts"
            if mistake
            else ""
        )
        click.echo(f"{title}: {counts}{placed}")
        failed += len(false)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
