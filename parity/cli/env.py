"""`parity env`: what a figure depends on besides the code."""

import click

from parity.cli.output import JSON


@click.command()
@JSON
def env(as_json: bool) -> None:
    """Print versions, devices and precision as a block to paste.

    The effective precision is measured, on one product of each framework.

    \b
    Example:
      parity env --json
    """
    from parity.host.environment import flat, here

    found = here()
    if as_json:
        from parity.report.as_json import dumps

        click.echo(dumps(found, indent=1))
        return
    lines = [(name, "none" if value is None else str(value)) for name, value in flat(found)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}")
