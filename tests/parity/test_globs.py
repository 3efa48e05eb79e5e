"""Globs: what each `*` holds, however many there are."""

import re

import hypothesis.strategies as st
from hypothesis import given, settings

from parity.core.globs import captured


@given(pattern=st.text("ab.*", max_size=8), name=st.text("ab.", max_size=9))
@settings(max_examples=500, deadline=None)
def test_they_hold_what_a_regular_expression_would(pattern, name):
    found = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name)
    assert captured(pattern, name) == (found.groups() if found else None)


def test_one_for_which_a_regular_expression_takes_years():
    assert captured("*a" * 30 + "b", "a" * 100) is None
    assert captured("*" * 30, "a\n") == ("a\n", *[""] * 29)
