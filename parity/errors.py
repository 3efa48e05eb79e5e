"""What the harness raises when it is used wrongly; failing parity is a verdict instead."""


class InputError(ValueError):
    """The user's input cannot be used: one line with what was expected, found, and what to do.

    The command line prints the message and exits with 2.
    """


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def printable(text: object) -> str:
    """A message as a terminal may have it: one line, whatever a name or path in it holds."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
