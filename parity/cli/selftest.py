"""`parity selftest`: known mistakes, made in the port of a registered pair."""

import sys
from typing import Any

import click

from parity.cli.options import SEED
from parity.cli.output import PROFILE, QUIET, Output
from parity.cli.pair_command import pair_command

OUT = "Where the table goes  [default: reports/PAIR-selftest]"
ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Each draws new weights, and for each mistake a module to make it in.",
)
MISTAKES = click.option("--only", metavar="GLOB", default="*", help="Mistakes by name.")


@pair_command(OUT, ROUNDS, SEED, MISTAKES, PROFILE, QUIET)
def selftest(pair: str, chosen: Any, options: dict[str, Any], output: Output, **how: Any) -> None:
    """Make known mistakes in a port, and see whether they are found.

    --json prints every trial. The table is written in any case. Options that the pair has of its
    own come after its name: see `parity selftest PAIR --help`.

    \b
    Example:
      parity selftest cogvideox --rounds 2 --only 'attention*'
    """
    from parity.report import terminal

    with output.progress() as progress:
        folder = output.folder(f"reports/{chosen.name}-selftest")
        from parity.selftest import rounds
        from parity.selftest.show import show, show_verdict, to_json, write

        with output.measured("jax", "torch"):
            result = rounds.selftest(chosen, options, progress=progress, **how)
    written = write(result, folder)
    if output.as_json:
        click.echo(to_json(result))
    elif output.quiet:
        show_verdict(result, terminal.output())
    else:
        show(result, terminal.output())
        click.echo(f"wrote {written}")
    sys.exit(0 if result else 1)
