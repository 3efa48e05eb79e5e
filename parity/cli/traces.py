"""`parity compare A B`: two golden traces. PyTorch is not needed."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from parity.cli.output import Output
from parity.core.exceptions import InputError

EXPECTED = "expected MODULE:FUNCTION, or two folders that `parity record` wrote"


def are_traces(names: tuple[str, ...]) -> bool:
    """Return true for paths of traces, false for the name of a function.

    Raises:
        InputError: they are neither.
    """
    # false of a name that no file can have
    missing = [name for name in names if not os.path.isfile(f"{name}/trace.json")]  # noqa: PTH113
    if len(names) == 1 and missing:
        return False
    if len(names) == 2 and not missing:
        return True
    found = "found one trace" if len(names) == 1 else f"found {len(names)} names"
    if len(names) == 2:
        found = f"{' and '.join(f'{name:.80}' for name in missing)}: no trace.json in it"
    raise InputError(f"{found}, {EXPECTED}")


def compare_two(names: tuple[str, ...], refused: Sequence[str], output: Output) -> NoReturn:
    """Compare the second trace with the first; `refused` are options given that say how to run."""
    if refused:
        option = refused[0].replace("_", "-")
        raise InputError(f"--{option}: nothing runs when two traces are compared; leave it out")
    before, after = map(Path, names)
    from parity.traces.compare import compare_traces

    with output.progress() as progress:
        folder = output.folder(f"reports/{before.resolve().name}-{after.resolve().name}")
        report = compare_traces(before, after, progress=progress)
    output.end(report, folder)
