"""Words of files and libraries in messages: short, and nothing that a terminal obeys."""

LONGEST = 100
"""Characters of a name or value that are shown."""

LONGEST_LINE = 900
"""Characters of a message that a terminal gets."""


PACKAGES = {
    **dict.fromkeys(("jax", "jaxlib", "flax", "orbax", "huggingface_hub", "filelock"), "vae"),
    **dict.fromkeys(("av", "imageio", "skimage"), "video"),
}
"""The extra that brings a package."""


def not_installed(error: Exception) -> str:
    """Return what to install, "" of an error that is not for lack of one of `PACKAGES`."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    lacking = isinstance(error, ModuleNotFoundError) and name in PACKAGES
    return f"{name} is not installed: pip install 'nnx-parity[{PACKAGES[name]}]'" if lacking else ""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(text: str) -> str:
    """Return a name or value as a message has it."""
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def printable(text: object) -> str:
    """Return a message as one line for a terminal, whatever a name in it holds."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
