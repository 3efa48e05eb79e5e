"""What messages show of files that others made: short, and nothing that a terminal obeys."""

LONGEST = 100
"""Characters of a name or value that are shown."""

LONGEST_LINE = 900
"""Characters of a message that a terminal gets."""


def shown(text: str) -> str:
    """A name or value as a message has it."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def printable(text: object) -> str:
    """A message as a terminal may have it: one line to be read, whatever a name in it holds."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
