"""What messages show of files that others made: short, and nothing that a terminal obeys."""

LONGEST = 100
"""Characters of a name or value that are shown."""


def shown(text: str) -> str:
    """A name or value as a message has it."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return cut if cut.isprintable() else repr(cut)[1:-1]
