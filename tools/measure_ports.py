"""Prints what a comparison without configuration says of the right ports in tests/ports."""

import sys
import time

import click

import parity
from parity.core.exceptions import first_line
from tests.ports.both import NAMES, made


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


def main() -> None:
    """Print the table, of the ports that are named or of all."""
    click.echo("| port | verdict | seconds | compared |\n|---|---|---|---|")
    for name in sys.argv[1:] or NAMES:
        click.echo(line(name))


if __name__ == "__main__":
    main()
