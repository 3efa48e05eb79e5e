"""`parity compare`: a module and its port, without a ladder."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from parity.cli.making import arguments, find_function
from parity.cli.options import DEPTH, EAGER, EMULATE, ONLY, SEEDS
from parity.cli.output import QUIET, REPRO, Output, with_output
from parity.cli.traces import are_traces, compare_two
from parity.core.exceptions import InputError

if TYPE_CHECKING:
    from parity.report import Report


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="MODULE:FUNCTION | TRACE TRACE")
@ONLY
@DEPTH
@click.option(
    "--seed",
    type=SEEDS,
    help="What torch's random numbers start from, while the function runs and in the comparison  "
    "[default: 0, and in the comparison what the function says]",
)
@click.option(
    "--device",
    metavar="PLATFORM[:N]",
    help="Where the port is made and runs, as in cpu or gpu:1; the reference runs on the CPU.",
)
@click.option("--gradients", is_flag=True, help="Compare the gradients too, module by module.")
@EMULATE
@EAGER
@with_output(
    "Where the report goes  [default: reports/MODULE.FUNCTION, or reports/TRACE-TRACE]",
    REPRO,
    QUIET,
)
def compare(
    names: tuple[str, ...],
    only: tuple[str, ...],
    depth: int | None,
    seed: int | None,
    device: str | None,
    gradients: bool,
    emulate: str | None,
    eager: bool,
    output: Output,
) -> None:
    """Compare the module and the port that MODULE:FUNCTION makes, or two golden traces.

    The function takes no arguments. It returns (torch_module, nnx_module, args), or a mapping of
    the arguments of `parity.compare`; options given here replace those. --json prints what
    report.json holds; files are written in any case.

    Of two traces, folders that `parity record` wrote, the first is the reference; neither model
    runs, PyTorch is not needed, and the options that say how to run are refused.
    """
    if gradients and only:
        raise InputError(
            "--gradients is of the whole model: use --depth, not --only, to see less of it"
        )
    given = _given(
        only=only, depth=depth, seed=seed, gradients=gradients, emulate=emulate, eager=eager
    )
    if are_traces(names):
        compare_two(names, [*given, *_given(device=device, repro=output.repro)], output)
    with output.progress() as progress:
        # the frameworks are imported here, which takes seconds
        make = find_function(names[0])
        default = f"reports/{names[0].replace(':', '.')}"
        folder = output.folder(default, bool(only) or depth is not None)
        given |= _given(keep_repro=output.repro is not None, progress=progress)
        with _on(device):
            report = _compared(names[0], make, seed or 0, given)
    output.end(report, folder, names[0])


def _given(**options: Any) -> dict[str, Any]:
    """Options of the command that were given; a 0 is one."""
    return {
        name: value
        for name, value in options.items()
        if not (value is None or value is False or value == ())
    }


def _compared(name: str, make: Callable[[], Any], seed: int, given: Mapping[str, Any]) -> "Report":
    """Report of what the function `make`, of that name, returns; `given` replaces what it says."""
    from parity.capture.restore_torch import seeded
    from parity.pipeline import compare as compare_modules
    from parity.run.repro import made_by_function

    given["progress"].stage("making both models")
    with seeded(seed):
        made = arguments(name, make)
    report = compare_modules(**{**made, **given})
    if report.repro is None:
        return report
    # the function may say another seed for the comparison
    return replace(report, repro=replace(report.repro, making=made_by_function(seed)))


def _on(text: str | None) -> AbstractContextManager[Any]:
    """Return a block in which JAX computes on `PLATFORM[:N]`, unless it is told otherwise."""
    if text is None:
        return nullcontext()
    import jax

    platform, _, number = text.partition(":")
    if not platform:
        raise InputError(f"--device {text!r}: expected PLATFORM or PLATFORM:N, as in cpu or gpu:1")
    try:
        device = {str(i): one for i, one in enumerate(jax.devices(platform))}[number or "0"]
    except (RuntimeError, KeyError) as error:
        found = ", ".join(f"{one.platform}:{i}" for i, one in enumerate(jax.devices()))
        raise InputError(f"--device {text!r}: JAX has {found}") from error
    placed: AbstractContextManager[Any] = jax.default_device(device)
    return placed
