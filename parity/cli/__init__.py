"""The command `parity`: exit 0 pass, 1 parity failure, 2 usage or input error.

Every command is a file. What takes long to import is imported where it is needed.
"""

from parity.cli.command import cli, main

__all__ = ["cli", "main"]
