"""What the commands take in common."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.errors import InputError

if TYPE_CHECKING:
    from parity.records import Pair

GROUP = "parity.pairs"
PROFILE = click.option(
    "--profile", metavar="DIR", help="Also profile the run, with the calls of modules by name."
)
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else."
)
QUIET = click.option(
    "--quiet", is_flag=True, help="No progress; print only what is wrong, and the verdict."
)


class Size(click.ParamType[tuple[int, int]]):
    """Height and width in pixels, as in 64x64."""

    name = "HxW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Parse; at least one pixel each way."""
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not HEIGHTxWIDTH, as in 64x64", param, ctx)
        return int(parts[0]), int(parts[1])


def find_pair(name: str) -> "Pair":
    """The pair registered under `name`, or the attribute that module:attribute names."""
    from importlib import import_module

    from parity.records import Pair

    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    try:
        if name in registered:
            found = registered[name].load()
        else:
            module, colon, attribute = name.partition(":")
            if not colon:
                raise InputError(
                    f"no pair {name!r}; registered: {', '.join(sorted(registered)) or 'none'}; "
                    "or give module:attribute"
                )
            sys.path.insert(0, str(Path.cwd()))  # a console script does not look there
            found = getattr(import_module(module), attribute)
    except InputError:
        raise
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"pair {name!r} cannot be loaded: {error}") from error
    if not isinstance(found, Pair):
        raise InputError(f"{name!r} is a {type(found).__name__}, expected a parity.Pair")
    return found


def writable(folder: Path, option: str = "--out") -> Path:
    """Make the folder now: a run of minutes should not end in an error about it."""
    import os

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made ({error.strerror}); choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written to; choose another {option}")
    return folder
