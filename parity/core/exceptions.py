"""Exceptions raised when the harness is used wrongly; failing parity is a verdict instead."""

import traceback


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
    """What to install, `""` of an error that is not for lack of one of `PACKAGES`.

    A module or name that only another version has counts if the harness imports it: what others
    import is their authors' concern.
    """
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or name not in PACKAGES:
        return ""
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        return f"{name} is not installed, and is needed here: pip install {name}"
    importing = [
        module
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not (module := frame.f_globals.get("__name__", "")).startswith("importlib")
    ]
    ours = importing[-1:] and importing[-1].startswith("parity.")
    old = f"the version of {name} here is too old or too new ({first_line(error)})"
    extra = name if name in ("torch", "pandas", "diffusers") else "jax"
    return f"{old}: pip install 'nnx-parity[{extra}]'" if ours else ""


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
