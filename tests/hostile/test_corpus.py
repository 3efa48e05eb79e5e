"""Every hostile input ends with one line and the right code, or the right verdict."""

import pytest

from tests.hostile import case, corpus


def shared(cases):
    """All of them, a seventh of them in every run and the others with the slow tests.

    Cases of videos and reports come in pairs, of which an even part would take one side alone.
    """
    for number, one in enumerate(cases):
        marks = [pytest.mark.slow] if number % 7 else []
        yield pytest.param(one, id=f"{one.kind}: {one.name}", marks=marks)


@pytest.mark.parametrize("one", list(shared(corpus.CASES)))
def test_a_hostile_input_ends_as_it_must(one, good, tmp_path):
    assert case.run(one, good, tmp_path / "case").problems == ()


def test_no_two_cases_have_one_name():
    names = [(one.kind, one.name) for one in corpus.CASES]
    assert len(set(names)) == len(names) >= 300
