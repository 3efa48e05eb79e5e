"""An index of a trace changed somewhere, and how a trace is refused."""

import contextlib

import pytest

from parity.core.exceptions import InputError


def put(content, path, value):
    """Set what these keys lead to."""
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def case(path, value):
    """Return a function that sets something of the first case of an index."""
    return lambda content: put(content["cases"][0], path, value)


@contextlib.contextmanager
def refused(*parts):
    """Expect an error of one line that says these."""
    with pytest.raises(InputError) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
