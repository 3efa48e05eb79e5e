"""Exceptions raised when the harness is used wrongly; failing parity is a verdict instead."""


class InputError(ValueError):
    """The user's input cannot be used: one line with what was expected, found, and what to do.

    The command line prints the message and exits with 2.
    """


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


PACKAGES = ("torch", "jax", "jaxlib", "flax", "diffusers", "pandas")
"""Packages that not everybody has, under the name by which pip knows them too."""


def not_installed(error: Exception) -> str:
    """What to install, `""` of an error that is not for lack of one of `PACKAGES`."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    lacking = isinstance(error, ModuleNotFoundError) and name in PACKAGES
    return f"{name} is not installed, and is needed here: pip install {name}" if lacking else ""


LONGEST = 900
"""Characters of a message that a terminal gets."""


def escaped(text: str) -> str:
    """The text in one line that holds nothing a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable(text: object) -> str:
    """A message as a terminal may have it: one line to be read, whatever a name in it holds."""
    line = escaped(str(text))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def shown(value: object, longest: int = 40) -> str:
    """A value out of a file as a message has it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
