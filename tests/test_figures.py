"""Every number of the documents that was measured has its command, and something that holds it.

`tests/docs/register.py` and `register_speed.py` list the measurements, `definitions.py` what nobody
measured. A number with a unit that is in none of them fails, but for code and what it prints:
`test_docs` runs that.
"""

import ast

import pytest

from tests.docs import register, register_speed
from tests.docs.definitions import DEFINITIONS
from tests.docs.documents import ROOT
from tests.docs.figures import PAGES, near, passage, read, section, unregistered
from tests.docs.sources import cells

FIGURES = register.FIGURES + register_speed.FIGURES
LINES = register.LINES + register_speed.LINES
TABLES = register.TABLES + register_speed.TABLES


def name_of(one):
    words = getattr(one, "text", "") or getattr(one, "below", "")
    return f"{one.document}: {' '.join(words.split()) or one.command}"


def found(one):
    """Where the passage stands in its document."""
    place = passage(one.text).search(read(one.document))
    assert place, f"not in {one.document}: {one.text}"
    return place


def compared(place, values):
    for shown, value in zip(place.groups(), values, strict=True):
        assert near(shown, value), f"{shown} instead of {value:g} in {place[0]!r}"


def source_of(test):
    """The text of the file of a test, `tests/file.py::name`, which has to be in it."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert name in {getattr(node, "name", "") for node in ast.parse(text).body}, f"no test {test}"
    return text


@pytest.mark.parametrize("one", FIGURES, ids=name_of)
def test_a_measurement(one):
    place, text = found(one), read(one.document)
    around = " ".join(section(text, place.start()).split())
    assert one.command in around, f"no {one.command} near {place[0]!r}"
    assert [bool(one.values), bool(one.test), bool(one.once)].count(True) == 1
    assert place.groups() or not one.values
    if one.values:
        compared(place, one.values())
    elif one.test:
        assert one.bound in source_of(one.test), f"{one.test} no longer says {one.bound}"
    else:
        assert one.once in around, f"{one.once}: when it was measured is not said"


@pytest.mark.parametrize("one", DEFINITIONS, ids=name_of)
def test_a_definition(one):
    compared(found(one), one.values)
    assert one.values or one.why


@pytest.mark.parametrize("one", LINES, ids=name_of)
def test_lines_that_a_command_wrote(one):
    text = read(one.document)
    assert one.command in text
    missing = [line for line in one.lines() if line not in text.split("\n")]
    assert not missing


@pytest.mark.parametrize("one", TABLES, ids=name_of)
def test_a_table_that_is_measured_anew(one):
    assert one.command in read(one.document)
    assert cells(one.document, one.below)
    assert source_of(one.test)


@pytest.mark.parametrize("page", PAGES)
def test_no_measurement_is_left_out(page):
    lines = [line for one in LINES if one.document == page for line in one.lines()]
    for one in TABLES:
        if one.document == page:
            rows = {tuple(row) for row in cells(page, one.below)}
            lines += [line for line in read(page).split("\n")
                      if tuple(x.strip() for x in line.strip("|").split("|")) in rows]  # fmt: skip
    passages = [one.text for one in (*FIGURES, *DEFINITIONS) if one.document == page]
    left = list(unregistered(read(page), passages, lines))
    assert not left, f"{page}: in no register of tests/docs: {', '.join(left)}"


@pytest.mark.parametrize(
    "text",
    [
        "It took 31 s.", "Half of 70\ns.", "2 GiB", "20 %", "an MAE of 4e-7", "R at most 3", "R 5",
        "a ratio of 1.2", "5 of 5 calls", "| conv | 738 |", "14 times", "215,583,907 parameters",
        "```\nconv 1.82e-07\n```",
    ],
)  # fmt: skip
def test_a_new_measurement_is_seen(text):
    assert len(list(unregistered(text, [], []))) == 1
    assert not list(unregistered(text, [text], []))


@pytest.mark.parametrize("text", ["torch 2.13.0", "`x < 0.5`", "commit de3e8ba", "49 frames"])
def test_what_is_no_measurement(text):
    assert not list(unregistered(text, [], []))


def test_a_number_is_right_to_its_last_digit():
    assert near("4.7", 4.72)
    assert near("1.9e-6", 1.907e-6)
    assert near("215,583,907", 215_583_907)
    assert not near("4.7", 4.76)
    assert not near("2e-6", 3e-6)


def test_a_passage_that_changed_is_not_found():
    assert passage("took {} s").search("It took\n31 s.")[1] == "31"
    assert passage("to 2e-6").search("to 2e-67") is None
