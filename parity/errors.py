"""What the harness raises when it is used wrongly; failing parity is a verdict instead."""


class InputError(ValueError):
    """The user's input cannot be used: one line with what was expected, found, and what to do.

    The command line prints the message and exits with 2.
    """
