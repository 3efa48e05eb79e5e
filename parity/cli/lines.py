"""`parity lines`: a PyTorch module and a function of JAX beside each other, line by line."""

import inspect
import sys
from collections.abc import Callable
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

import click

from parity.cli.compare import find_function
from parity.cli.output import JSON
from parity.core.exceptions import InputError

if TYPE_CHECKING:
    from parity.lines.whole_programs import Step

FORM = "(torch_module, function, args), or with the port's args behind them"
MARKS = {"parts": ">", "follows": " "}


@click.command()
@click.argument("name", metavar="MODULE:FUNCTION")
@JSON
def lines(name: str, as_json: bool) -> None:
    """Align a module and a function of JAX line by line, by values.

    FUNCTION takes no arguments and returns (torch_module, function, args): what is called is
    torch_module(*args) and function(*args), an NNX module or any function of JAX. A fourth entry
    holds the port's args; else arrays of four axes and more are given to it channel-last. Printed
    are the lines of both where values part, and those that follow from it; lines that agree are
    counted. Exits with 1 if they part.

    \b
    Example:
      parity lines my.module:make_pair
    """
    from parity.lines.whole_programs import align
    from parity.report.as_json import dumps
    from parity.report.excerpts import side_by_side

    made = align(*_arguments(name, find_function(name)))
    if as_json:
        click.echo(dumps(made, indent=1))
    else:
        for row in _columns(made.port, made.reference):
            click.echo(row)
        for number, one in enumerate(made.partings, 1):
            click.echo(f"\nparting {number} of {len(made.partings)}")
            for row in side_by_side(one):
                click.echo(row)
    if made.partings:
        sys.exit(1)


def _arguments(name: str, function: Callable[[], Any]) -> tuple[Any, ...]:
    from parity.capture.arguments import port_arguments

    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{name}: {error}; it is called without arguments") from error
    made = function()
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise InputError(f"{name} returns a {type(made).__name__}{size}, expected {FORM}")
    if len(made) == 4:
        return made
    args, _ = port_arguments(made[0], "__call__", made[2], {}, "", {})
    return (*made, args)


def _columns(port: "tuple[Step, ...]", reference: "tuple[Step, ...]") -> list[str]:
    """Both programs beside each other, what agrees folded away, the partings level."""
    from parity.report.excerpts import beside

    sides = [_chunks(port), _chunks(reference)]
    rows = [beside("port", "reference")]
    for left, right in zip_longest(*sides, fillvalue=[]):
        rows += [beside(*pair) for pair in zip_longest(left, right, fillvalue="")]
    return rows


def _chunks(steps: "tuple[Step, ...]") -> list[list[str]]:
    """The texts of one side, cut before each run of lines that part."""
    chunks: list[list[str]] = [[]]
    for state, group in groupby(steps, key=lambda step: step.state):
        run = list(group)
        if state == "agrees":
            chunks[-1].append(f"  ... {len(run)} lines agree" if len(run) > 1 else "  ... 1 agrees")
            continue
        if state == "parts":
            chunks.append([])
        chunks[-1] += [f"{MARKS[state]} {x.line.place} {x.line.text.strip()}" for x in run]
    return chunks
