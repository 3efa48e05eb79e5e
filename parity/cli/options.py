"""Arguments and options that commands share, and the pair that one of them names."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from parity.core.exceptions import InputError
from parity.options.emulate import MEANINGS

if TYPE_CHECKING:
    from parity.core.pair import Pair

GROUP = "parity.pairs"


def registered() -> dict[str, str]:
    """Return the module:attribute of each pair that is installed, by name."""
    from importlib.metadata import entry_points  # which imports much

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def _named(context: click.Context, argument: click.Parameter, name: str | None) -> str:
    if name is None:
        known = ", ".join(sorted(registered())) or "none"
        raise click.UsageError(f"name a pair: registered are {known}; or give module:attribute")
    return name


PAIR = click.argument(
    "pair",
    metavar="PAIR",
    required=False,
    callback=_named,
    shell_complete=lambda context, argument, begun: [
        name for name in sorted(registered()) if name.startswith(begun)
    ],
)
EMULATE = click.option(
    "--emulate",
    type=click.Choice(list(MEANINGS)),
    help="Also run the port as hardware with coarser products would, and report what that adds; "
    "verdict and table stay those of the port as it runs here. "
    + " ".join(f"{name}: {meaning}." for name, meaning in MEANINGS.items()),
)
EAGER = click.option(
    "--eager",
    is_flag=True,
    help="Run the port operation by operation: modules inside its own programs and loops are seen "
    "call by call.",
)
ONLY = click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="Record and judge only these modules of the reference, by path, and what they call. The "
    "report is at best a WARN: it says nothing of the others. May be given several times.",
)
DEPTH = click.option(
    "--depth",
    type=click.IntRange(0),
    help="Look so many levels of modules into the model, or into those of --only; deeper ones "
    "count with the module around them. The report is at best a WARN.",
)
DIAGNOSIS = click.option(
    "--diagnosis-seconds",
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Look for causes and lines of faults so long, all together; the report says what was not "
    "tried  [default: as much as 60 runs of a faulty call]",
)
SEEDS = click.IntRange(0, 2**32 - 1)
"""A seed that every stream of random numbers takes."""

SEED = click.option("--seed", type=SEEDS, default=0, show_default=True)


def of_a_part(how: Mapping[str, Any]) -> bool:
    """Return true if the options choose some of the modules: such a report is on a part."""
    return bool(how["only"]) or how["depth"] is not None


def find_pair(name: str) -> "Pair":
    """Return the pair registered under `name`, or the attribute that module:attribute names."""
    from parity.core.pair import Pair

    found = load(place_of(name), own=name not in registered())
    if not isinstance(found, Pair):
        raise InputError(f"{name!r} is a {type(found).__name__}, expected a parity.Pair")
    return found


def place_of(name: str) -> str:
    """Return the module:attribute of a registered pair; any other name as it is."""
    known = registered()
    if name not in known and ":" not in name:
        raise InputError(
            f"no pair {name!r}; registered: {', '.join(sorted(known)) or 'none'}; "
            "or give module:attribute, and what is the pair's own after it"
        )
    return known.get(name, name)


def load(name: str, own: bool = True) -> Any:
    """Return the attribute that module:attribute names.

    `own` modules may lie in the current folder, from which of what is installed nothing is taken.
    """
    from importlib import import_module

    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))):
        raise InputError(f"{name!r:.80}: expected module:attribute, as in package.module:function")
    here = str(Path.cwd())
    if own and here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look there
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        # one that the module itself imports is its author's: they need the traceback
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            plain = f"{module.removesuffix('.py')}:{attribute}"
            hint = f"; write {plain}" if module.endswith(".py") else ""
            raise InputError(f"{name!r} cannot be loaded: {error}{hint}") from error
        raise
    except AttributeError as error:
        if error.name == attribute and isinstance(error.obj, ModuleType):
            near = get_close_matches(attribute, vars(error.obj), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{name!r} cannot be loaded: {error}{hint}") from error
        raise
