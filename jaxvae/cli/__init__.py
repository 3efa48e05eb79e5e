"""The command `jaxvae`: real video in, real video out."""

from jaxvae.cli.command import cli, main

__all__ = ["cli", "main"]
