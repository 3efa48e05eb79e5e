"""Globs: what each `*` holds, however many there are."""

import re
from fnmatch import fnmatchcase

import hypothesis.strategies as st
from hypothesis import given, settings

from parity.core.globs import captured


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
    assert held is None or len("".join(held)) <= len(name)


def test_one_for_which_a_regular_expression_takes_years():
    assert captured("*a" * 30 + "b", "a" * 100) is None
    assert captured("*" * 30, "a\n") == ("a\n", *[""] * 29)
