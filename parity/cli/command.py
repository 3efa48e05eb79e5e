"""The group of commands, and what errors become: one line and an exit code."""

import atexit
import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import click

from parity.cli.check import check
from parity.cli.compare import compare
from parity.cli.diff import diff
from parity.cli.env import env
from parity.cli.history import history
from parity.cli.lines import lines
from parity.cli.record import record
from parity.cli.run import run
from parity.cli.selftest import selftest
from parity.cli.show import show
from parity.core.exceptions import InputError, not_installed, printable


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nnx-parity", prog_name="parity")
def cli() -> None:
    """A profiler for numerical error between PyTorch and Flax NNX."""


for command in (run, compare, lines, record, check, diff, history, show, selftest, env):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"parity: {printable(error)}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OSError as error:
        click.echo(f"parity: {printable(error)}; the run is lost", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("parity: interrupted", err=True)
        _leave()
    except Exception as error:
        if text := not_installed(error):
            click.echo(f"parity: {text}", err=True)
            sys.exit(2)
        # A model or pair that raises: its author needs the traceback, and CI must not take it
        # for a failed comparison.
        traceback.print_exc()
        click.echo("parity: the run broke off, nothing was compared", err=True)
        sys.exit(2)


def _leave() -> NoReturn:
    """End the process after an interrupt, without the interpreter's exit.

    XLA's threads still compute, and there they sometimes end it with a segmentation fault. All
    `finally` blocks have run. What others leave to `atexit` is done, such as temporary folders of
    the user's models. But JAX would wait for its threads.
    """
    try:
        with suppress(OSError):
            sys.stdout.flush()
        if jax := sys.modules.get("jax._src.api"):
            atexit.unregister(jax.clean_up)
        atexit._run_exitfuncs()
    finally:  # whatever they raise, or a second interrupt
        os._exit(130)
