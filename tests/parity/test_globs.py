"""Globs: what each `*` holds, however many there are."""

import re
from fnmatch import fnmatchcase

import hypothesis.strategies as st
from hypothesis import given, settings

from parity.core.globs import captured, renamed


@given(pattern=st.text("ab.*", max_size=8), name=st.text("ab.", max_size=9))
@settings(max_examples=500, deadline=None)
def test_they_hold_what_a_regular_expression_would(pattern, name):
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name)
    assert captured(pattern, name) == (found.groups() if found else None)


@given(pattern=st.text("ab.*?[]!-", max_size=10), name=st.text("ab.", max_size=9))
@settings(max_examples=1000, deadline=None)
def test_they_hold_something_where_a_glob_of_the_shell_matches(pattern, name):
    held = captured(pattern, name)
    assert (held is not None) == fnmatchcase(name, pattern)
    if held is not None:  # what is held, put back, is matched again
        filled = iter(held)
        back = re.sub(
            r"\[(?:!.|[^!])[^]]*\]|.", lambda x: next(filled) if x[0] == "*" else x[0], pattern
        )
        assert fnmatchcase(name, back)


def test_one_for_which_a_regular_expression_takes_years():
    assert captured("*a" * 30 + "b", "a" * 100) is None
    assert captured("*" * 30, "a\n") == ("a\n", *[""] * 29)


def test_an_exact_name_is_more_specific_than_a_set_of_letters():
    assert renamed("blocks.0", {"blocks.0": "first", "blocks.[0-9]": "rest"}) == "first"
    assert renamed("blocks.1", {"blocks.0": "first", "blocks.[0-9]": "rest"}) == "rest"
