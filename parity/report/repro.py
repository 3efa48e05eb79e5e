"""A fault as a folder that shows it: its call's arrays, and a script that makes the call."""

from importlib.resources import files
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import save

from parity.core.exceptions import InputError, escaped
from parity.core.files import write_all
from parity.core.repro import Repro


def write_repro(repro: Repro, folder: Path, make: str) -> list[Path]:
    """Write the arrays and the script, each file whole or not at all; returns their paths.

    `make` is `module:attribute` of what makes the port.

    Raises:
        InputError: the call cannot be written down, or `make` is not of that form.
    """
    from jinja2 import Environment, StrictUndefined

    where = f"`{repro.fault.name}`, call {repro.fault.call}"
    if repro.problem:
        raise InputError(f"repro: {where} cannot be made again by itself: {repro.problem}")
    home, _, name = make.partition(":")
    if not all(map(str.isidentifier, [*home.split("."), name])):
        raise InputError(f"repro: make={make!r}: expected module:attribute, what makes the port")
    arrays = {
        "inputs": repro.given or {},
        "expected": repro.expected or {},
        "weights": repro.weights or {},
    }
    try:
        written: dict[str, str | bytes] = {
            f"{key}.safetensors": save(dict(found)) for key, found in arrays.items()
        }
    except (SafetensorError, KeyError, UnicodeError) as error:
        # KeyError: a type that it has no name for; UnicodeError: a name that is no text
        raise InputError(f"repro: {where} has arrays that no file can hold: {error}") from error
    env = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    env.filters["words"] = _words
    script = env.from_string(files("parity.report").joinpath("repro.py.jinja").read_text("utf-8"))
    place = folder / "repro.py"
    written["repro.py"] = script.render(repro=repro, script=place, home=home, name=name)
    write_all(folder, written)
    return [folder / key for key in written]


def _words(text: object) -> str:
    """A name as the script's own docstring may have it: text that does not end it."""
    return escaped(str(text)).replace("\\", "\\\\").replace('"', '\\"')
