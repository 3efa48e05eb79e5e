"""`parity compare`: a module and its port, without a ladder."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from parity.cli.dtype import TYPES, cast
from parity.cli.ending import end
from parity.cli.making import arguments, find_function
from parity.cli.options import (
    BUNDLE,
    DEPTH,
    DISABLE_JIT,
    EMULATE,
    JSON,
    ONLY,
    QUIET,
    default_folder,
    writable,
)
from parity.errors import InputError


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@ONLY
@DEPTH
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="What torch's random numbers start from, while the function runs and in the comparison  "
    "[default: 0, and in the comparison what the function says]",
)
@click.option(
    "--device",
    metavar="PLATFORM[:N]",
    help="Where the port is made and runs, as in cpu or gpu:1; the reference runs on the CPU.",
)
@click.option(
    "--dtype",
    type=click.Choice(TYPES),
    help="Convert floating parameters, buffers and arguments of both sides to this type first.",
)
@EMULATE
@DISABLE_JIT
@BUNDLE
@QUIET
@JSON
@click.option(
    "--out", metavar="DIR", help="Where the report goes  [default: reports/MODULE.FUNCTION]"
)
def compare(
    function: str,
    only: tuple[str, ...],
    depth: int | None,
    seed: int | None,
    device: str | None,
    dtype: str | None,
    emulate: str | None,
    disable_jit: bool,
    bundle: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
) -> None:
    """Compare the module and the port that MODULE:FUNCTION makes.

    The function takes no arguments. It returns (torch_module, nnx_module, args), or a mapping of
    the arguments of `parity.compare`; options given here replace those. --json prints what
    report.json holds; files are written in any case.
    """
    if bundle and dtype:
        raise InputError(
            "--bundle cannot make the port again in another type: have the function make it so, "
            "without --dtype"
        )
    if out:
        writable(Path(out))
    if bundle:
        writable(Path(bundle), "--bundle")
    make = find_function(function)
    folder = writable(Path(out) if out else default_folder(function, only, depth))

    placed = nullcontext() if device is None else _on(device)

    from parity.pipeline import compare as compare_modules
    from parity.state_torch import seeded

    given: dict[str, Any] = {"seed": seed} if seed is not None else {}
    given |= {"exhibit": True} if bundle else {}
    given |= {"only": only} if only else {}
    given |= {"depth": depth} if depth is not None else {}
    given |= {"emulate": emulate} if emulate else {}
    given |= {"disable_jit": True} if disable_jit else {}
    if dtype == "float64":
        import jax

        jax.config.update("jax_enable_x64", True)
    with placed:
        with seeded(seed or 0):
            made = arguments(function, make)
        made = cast(made, dtype) if dtype else made
        report = compare_modules(**{**made, **given})
    end(report, folder, quiet=quiet, as_json=as_json, bundle=bundle, make=function)


def _on(text: str) -> AbstractContextManager[Any]:
    """Where JAX computes unless it is told otherwise, by `PLATFORM[:N]`."""
    import jax

    platform, _, number = text.partition(":")
    try:
        device = {str(i): one for i, one in enumerate(jax.devices(platform))}[number or "0"]
    except (RuntimeError, KeyError) as error:
        found = ", ".join(f"{one.platform}:{i}" for i, one in enumerate(jax.devices()))
        raise InputError(f"--device {text!r}: JAX has {found}") from error
    placed: AbstractContextManager[Any] = jax.default_device(device)
    return placed
