"""`parity compare`: a module and its port, without a ladder."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from parity.cli.options import DEPTH, DIAGNOSIS, EAGER, EMULATE, ONLY, SEEDS, load, of_a_part
from parity.cli.output import OPEN, QUIET, REPRO, Output, with_output
from parity.cli.traces import are_traces, compare_two
from parity.core.exceptions import InputError

ARGUMENTS = ("torch_module", "nnx_module", "torch_args")
FORM = "(torch_module, nnx_module, args), or a mapping of the arguments of parity.compare"


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
@DIAGNOSIS
@with_output(
    "Where the report goes  [default: reports/MODULE.FUNCTION, or reports/TRACE-TRACE]",
    REPRO,
    QUIET,
    OPEN,
)
def compare(names: tuple[str, ...], output: Output, **how: Any) -> None:
    """Compare a module and its port, or two golden traces.

    FUNCTION takes no arguments and makes both. It returns (torch_module, nnx_module, args), or a
    mapping of the arguments of `parity.compare`; options given here replace those. --json prints
    what report.json holds; files are written in any case.

    Of two traces, folders that `parity record` wrote, the first is the reference; neither model
    runs, PyTorch is not needed, and the options that say how to run are refused.

    \b
    Examples:
      parity compare my.module:make_pair --open
      parity compare my.module:make_pair --only 'encoder.*' --gradients
      parity compare traces/before traces/after
    """
    if how["gradients"] and how["only"]:
        raise InputError(
            "--gradients is of the whole model: use --depth, not --only, to see less of it"
        )
    source = click.get_current_context().get_parameter_source
    given = {name: how[name] for name in how if source(name) is ParameterSource.COMMANDLINE}
    if are_traces(names):
        compare_two(names, [*given, *(["repro"] if output.repro else [])], output)
    device = given.pop("device", None)
    with output.progress() as progress:
        # the frameworks are imported here, which takes seconds
        make, seed = find_function(names[0]), how["seed"] or 0
        folder = output.folder(f"reports/{names[0].replace(':', '.')}", of_a_part(how))
        from parity.capture.restore_torch import seeded
        from parity.pipeline import compare as compare_modules
        from parity.run.repro import made_by_function

        with _on(device):
            progress.stage("making both models")
            with seeded(seed):
                made = arguments(names[0], make)
            made |= {"keep_repro": output.repro is not None, "progress": progress}
            report = compare_modules(**{**made, **given})
    if report.repro is not None:  # the function may say another seed for the comparison
        made_so = replace(report.repro, making=made_by_function(seed))
        report = replace(report, repro=made_so)
    output.end(report, folder, names[0])


def find_function(name: str) -> Callable[[], Any]:
    """Return the function that `module:function` names.

    Raises:
        InputError: there is none, or it is something else.
    """
    found = load(name)

    from parity.core.pair import Pair

    if isinstance(found, Pair):
        raise InputError(f"{name!r} is a parity.Pair, which has a ladder: `parity run {name}`")
    if not callable(found):
        kind = type(found).__name__
        raise InputError(f"{name!r} is a {kind}, expected a function that returns {FORM}")
    function: Callable[[], Any] = found
    return function


def arguments(name: str, function: Callable[[], Any]) -> dict[str, Any]:
    """Return the arguments of `parity.compare` that the function returns.

    Raises:
        InputError: it takes arguments itself, or returns something else.
    """
    from parity.pipeline import compare as compare_modules

    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{name}: {error}; it is called without arguments") from error
    made = function()
    if isinstance(made, tuple) and len(made) == len(ARGUMENTS):
        made = dict(zip(ARGUMENTS, made, strict=True))
    if not isinstance(made, Mapping):
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise InputError(f"{name} returns a {type(made).__name__}{size}, expected {FORM}")
    try:
        inspect.signature(compare_modules).bind(**made)
    except TypeError as error:
        raise InputError(f"{name} returns a mapping, and parity.compare: {error}") from error
    return dict(made)


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
