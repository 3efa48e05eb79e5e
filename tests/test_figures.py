"""Every number of the documents that was measured has its command, and something that holds it.

`tests/docs/register.py` and `register_speed.py` list the measurements, `definitions.py` what nobody
measured. What looks like a measurement (`MEASURED` in `figures.py`) and is in none of them fails,
but for code and what it prints: `test_docs` runs that.
"""

import pytest

from tests.docs import register, register_speed
from tests.docs.bounds import code_of, is_slow, problem, reads, source_of
from tests.docs.definitions import DEFINITIONS
from tests.docs.figures import PAGES, Figure, near, passage, read, section, unregistered
from tests.docs.sources import cells

FIGURES = register.FIGURES + register_speed.FIGURES
LINES = register.LINES + register_speed.LINES
TABLES = register.TABLES + register_speed.TABLES


def name_of(one):
    words = getattr(one, "text", "") or getattr(one, "below", "")
    return f"{one.document}: {' '.join(words.split()) or one.command}"


def found(one):
    """Where the passage stands in its document, everywhere."""
    places = list(passage(one.text).finditer(read(one.document)))
    assert places, f"not in {one.document}: {one.text}"
    return places


def compared(place, values):
    for shown, value in zip(place.groups(), values, strict=True):
        assert near(shown, value), f"{shown} instead of {value:g} in {place[0]!r}"


@pytest.mark.parametrize("one", FIGURES, ids=name_of)
def test_a_measurement(one):
    places, text = found(one), read(one.document)
    source = f"{read(one.of)} " if one.of else ""
    around = " ".join((source + section(text, places[0].start())).split())
    assert one.command in around, f"no {one.command} near {places[0][0]!r}"
    assert [bool(one.values), bool(one.test), bool(one.once)].count(True) == 1
    assert not (one.values and one.same)
    computed = one.values or one.same
    for place in places:
        assert bool(place.groups()) == bool(computed)
        if computed:
            compared(place, computed())
    if one.test:
        assert not problem(one, code_of(one.test))
    if one.once:
        assert one.once in around, f"{one.once}: when it was measured is not said"


@pytest.mark.parametrize("one", DEFINITIONS, ids=name_of)
def test_a_definition(one):
    for place in found(one):
        compared(place, one.values)
    assert one.values or one.why


@pytest.mark.parametrize("one", LINES, ids=name_of)
def test_lines_that_a_command_wrote(one):
    text = read(one.document)
    assert one.command in text
    missing = [line for line in one.lines() if line not in text.split("\n")]
    assert not missing


@pytest.mark.parametrize("one", TABLES, ids=name_of)
def test_a_table_that_is_measured_anew(one):
    text = read(one.document)
    assert one.command in text
    assert " ".join(one.once.split()) in " ".join(text.split())
    assert cells(one.document, one.below)
    code = code_of(one.test)
    assert one.bound in code
    assert reads(code, one.document)
    assert one.below.lstrip("# ") in code or "formulation(" in code
    assert reads(code_of(one.quick), one.document)
    assert not is_slow(one.quick)


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
        "```\nconv 1.82e-07\n```", "100 µs", "100 us", "40 ns", "3 mins", "3 secs", "30 fps",
        "41 MB/s", "2 GiB/s", "7 GB/min", "12 GFLOPs", "12 GFLOP/s", "5x faster", "3 x",
        "20 percent", "20 per cent", "R is 5", "R = 5", "R=5", "R<=3", "R ≥ 3", "R up to 4",
        "7 out of 9", "| -5 |", "a tenth of a microsecond", "less than a microsecond",
        "half a millisecond",
    ],
)  # fmt: skip
def test_a_new_measurement_is_seen(text):
    assert len(list(unregistered(text, [], []))) == 1
    assert not list(unregistered(text, [text], []))


@pytest.mark.parametrize("text", [
    "torch 2.13.0", "`x < 0.5`", "commit de3e8ba", "49 frames", "64x64 pixels", "64 x 64 pixels",
    "in a second, larger table",
])  # fmt: skip
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


HELD = """
LIMIT = 2e-6

def check(found):
    assert found < LIMIT

def test_one():
    check(measure())

def test_other():
    shown = numbers("README.md", "took # s")
    assert measure() < 1.5 * shown
"""


@pytest.mark.parametrize(
    ("name", "text", "bound", "words"),
    [
        ("test_one", "to 2e-6", "LIMIT = 2e-6", ""),
        ("test_one", "to 5e-6", "LIMIT = 2e-6", "neither reads"),
        ("test_one", "to 2e-6", "1.5 * shown", "does not say"),
        ("test_one", "to 2e-6", "", "does not say"),
        ("test_other", "took 31 s", "1.5 * shown", ""),
        ("test_other", "took 31 s", "LIMIT = 2e-6", "does not say"),
        ("test_one", "less than it was", "LIMIT = 2e-6", "neither reads"),
    ],
)
def test_a_bound_is_of_the_test_that_is_named(name, text, bound, words):
    one = Figure("README.md", text, "make report", test=name, bound=bound)
    found = problem(one, source_of(HELD, name))
    assert words in found
    assert bool(words) == bool(found)


def test_a_number_in_words_is_compared():
    (word,) = passage("made {} times more").search("is made four\ntimes more").groups()
    assert near(word, 4)
    assert not near(word, 5)
