"""Prints what a comparison without configuration says of the right ports in tests/ports, and with
`--planted` of the same with one mistake each.
"""

import time

import click

import parity
from parity.core.exceptions import first_line
from tests.ports.both import NAMES, made
from tests.ports.planted import drawn, misplaced


def line(name: str) -> str:
    """A row of the table: verdict, seconds, and how much was compared."""
    reference, port, args = made(name)
    start = time.perf_counter()
    try:
        report = parity.compare(reference, port, args)
    except Exception as error:
        return f"| {name} | {type(error).__name__} | - | {first_line(error)[:60]} |"
    seconds = time.perf_counter() - start
    found = report.coverage
    text = f"{len(found.matched)} of {found.modules} modules, {len(report.faults)} faults"
    return f"| {name} | {report.verdict} | {seconds:.1f} | {text} |"


def planted_lines(name: str, seed: int) -> list[str]:
    """A row for each of three mistakes: what it is, and what is wrong with its place."""
    rows = []
    for mistake in drawn(name, seed):
        start = time.perf_counter()
        try:
            wrong = misplaced(parity.compare(*mistake.make(), check_compiled=False), mistake)
        except Exception as error:
            wrong = f"{type(error).__name__}: {first_line(error)}"
        seconds = time.perf_counter() - start
        where = ", ".join(path or "(root)" for path in mistake.paths)
        what = mistake.what.replace("|", "or").replace("\n", " ")
        rows.append(
            f"| {name} | {mistake.kind}: `{what}` | {where} | {seconds:.1f} | {wrong or 'right'} |"
        )
    return rows


@click.command()
@click.argument("names", nargs=-1)
@click.option("--planted", is_flag=True, help="Plant three mistakes in each port.")
@click.option("--seed", default=0, help="Which mistakes.")
def main(names: tuple[str, ...], planted: bool, seed: int) -> None:
    """Print the table, of the ports that are named or of all."""
    if not planted:
        click.echo("| port | verdict | seconds | compared |\n|---|---|---|---|")
        for name in names or NAMES:
            click.echo(line(name))
        return
    click.echo("| port | mistake | module | seconds | place |\n|---|---|---|---|---|")
    rows = []
    for name in names or NAMES:
        new = planted_lines(name, seed)
        click.echo("\n".join(new))
        rows += new
    right = sum(row.endswith("| right |") for row in rows)
    click.echo(f"\n{right} of {len(rows)} are placed right, without another fault.")


if __name__ == "__main__":
    main()
