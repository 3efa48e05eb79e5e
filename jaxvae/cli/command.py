"""The group of commands, and what errors become: one line and exit code 2."""

import os
import sys
from contextlib import suppress

import click

from jaxvae.cli.convert import convert
from jaxvae.cli.decode import decode
from jaxvae.cli.encode import encode
from jaxvae.cli.reconstruct import reconstruct
from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.messages import not_installed, printable
from jaxvae.io.video import VideoError
from jaxvae.models.config import ConfigError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nnx-parity", prog_name="jaxvae")
def cli() -> None:
    """Autoencoders of images and videos in JAX."""


for command in (reconstruct, encode, decode, convert):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    try:
        cli.main(standalone_mode=False)
    except (VideoError, WeightsError, ConfigError) as error:
        click.echo(f"jaxvae: {printable(error)}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"jaxvae: {printable(error)}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if not (text := not_installed(error)):
            raise
        click.echo(f"jaxvae: {text}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("jaxvae: interrupted", err=True)
        # XLA's threads still compute, and at the interpreter's exit they sometimes end it with a
        # segmentation fault. All `finally` blocks have run, and nothing here waits for `atexit`.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(130)
