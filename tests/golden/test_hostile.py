"""Whatever is written into `trace.json`, with its digest made anew: it is refused or understood."""

import contextlib
import json
import shutil

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.core import codec
from parity.core.exceptions import InputError
from parity.traces import index
from parity.traces.check import check_trace
from parity.traces.trace import open_trace

VALUES = (
    None, True, -1, 0, 3, 2**70, 1e308, "", "a", "../../x", "/etc/passwd", "float128", "object",
    "\x00", [], [1], {"digest": "a", "shape": [-1], "dtype": "float32"}, {}, {"a": 1}, {"array": 9},
    {"float": []}, {"buffer": None}, {"opaque": "\x00"},
)  # fmt: skip


def places(value, path=()):
    """Every place in a nested value."""
    yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from places(inner, (*path, key))


def put(content, path, value):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


@pytest.fixture(scope="module")
def spoilt(recorded, tmp_path_factory):
    return shutil.copytree(recorded, tmp_path_factory.mktemp("hostile") / "trace")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(part=st.integers(0), place=st.integers(0), value=st.sampled_from(VALUES))
def test_it_is_refused_with_one_line_or_read(recorded, spoilt, resign, part, place, value):
    content = json.loads((recorded / index.NAME).read_text())
    parts = sorted(set(content) - {"format", "sha256"})
    name = parts[part % len(parts)]
    found = list(places(content[name]))
    put(content, (name, *found[place % len(found)]), value)
    (spoilt / index.NAME).write_text(json.dumps(content))
    resign(spoilt, lambda content: None)
    with contextlib.suppress(InputError):
        open_trace(spoilt)


def nested(depth):
    return "[" * depth + "]" * depth


def case(path, value):
    return lambda content: put(content["cases"][0], path, value)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (case(("given", 0, "shape"), [-1, 7]), "(-1, 7) is no shape"),
        (case(("given", 0, "shape"), [1 << 60]), "6976,) is no shape"),
        (case(("given", 0, "dtype"), "object"), "'object' is no type of numbers"),
        (case(("given", 0, "dtype"), "finfo"), "'finfo' is no type of numbers"),
        (case(("given", 0, "digest"), "../up"), "'../up' is no digest"),
        (case(("calls", 0, "parent"), 99), "must be inside a later one"),
        (case(("calls",), []), "each but the last must"),
        (case(("arguments",), 3), "expected a tuple and a dict"),
        (case(("arguments",), {"tuple": [{"tuple": []}, {"dict": {}}]}), "each of 1 arrays once"),
        (case(("r_limit",), "NaN"), "expected a number"),
        (lambda content: content["environment"].update(seed="x"), "expected an integer"),
        (case(("calls", 0, "order"), 1), "expected the order of each to be its place"),
        (case(("float64",), []), "float64: expected 11, found 0"),
        (lambda content: content.update(cases=[]), "has no case"),
        (lambda content: content["cases"].append(content["cases"][0]), "has 2 cases"),
    ],
)
def test_what_is_wrong_is_said(trace, resign, change, part):
    resign(trace, change)
    with pytest.raises(InputError) as caught:
        open_trace(trace)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_float64_adds_has_the_size_of_what_it_is_added_to(trace, resign):
    def change(content):
        found = content["cases"][0]["float64"]
        forms = [form for call in found for form in call["own"].values() if form]
        forms[0].update(next(form for form in forms if form["shape"] != forms[0]["shape"]))

    resign(trace, change)
    with pytest.raises(InputError, match="cannot be added to"):
        open_trace(trace)


@pytest.mark.parametrize(
    ("text", "part"),
    [(nested(100_000), "no JSON"), ('{"format": NaN}', "NaN is no JSON"), ("3", "no index"),
     ('{"format": "3"}', "format '3', this version reads 5"), ("{}", "no index")],
    ids=["nested", "NaN", "a number", "another type", "no format"],
)  # fmt: skip
def test_what_is_no_index(trace, text, part):
    (trace / index.NAME).write_text(text)
    with pytest.raises(InputError, match=part):
        open_trace(trace)


def test_one_that_is_too_large_is_not_read(trace, monkeypatch):
    monkeypatch.setattr(codec, "LARGEST", 1000)
    with pytest.raises(InputError, match="bytes, at most 1000 can be read"):
        check_trace(trace, tiny.PAIR)
