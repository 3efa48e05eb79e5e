"""Hostile names of modules in every file and on the terminal: data, never markup or commands."""

import csv
import json
import random
import re
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import jax.numpy as jnp
import pytest
import torch
from click.testing import CliRunner
from flax import nnx

import parity
from parity.cli import cli
from parity.core.exceptions import escaped
from parity.report.assertion import assess
from tests.hostile.models import compared
from tests.hostile.modules import named
from tests.nets import torch_of
from tests.ports import nnx_of

NAMES = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "{{ 7 * 7 }}",
    "`|` [a](javascript:alert(1))",
    "]]><x>",
    "=HYPERLINK(0)",
    'a"b,c',
    "a\nb\r",
    "\x1b]0;title\x07\x1b[2J",
    "\x00\x7f",
    "\u202egnp\u200b",
    "\ud800",
    "[bold red]x[/]",
    "n" * 3000,
]


class Tags(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts = [], 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        # the length of a figure, such as that of the memory, decides on a class
        self.tags.append((tag, sorted(name for name, _ in attrs if name != "class")))
        self.scripts += tag == "script"


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """The tags of the page for a name that has nothing in it."""
    return tags_of(named("plain"), tmp_path_factory.mktemp("plain"))


def tags_of(made, folder):
    report = made.report()
    assert report.verdict == "PASS"
    report.write(folder)
    return Tags((folder / "report.html").read_text("utf-8")).tags


CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn", "Zs")
"""Of characters that cannot be seen, or that a terminal or a browser obeys."""

MARKS = [*"`|*_#<>&[]()!=+-@~'\"\\\n{}", "```", "](", "<b>", "&#60;", "\n\n# all: PASS\n", '"""']


def draw(seed, count=12):
    """Names of drawn characters of one of these categories, between marks of some format."""
    rng = random.Random(seed)
    of = {kind: [] for kind in CATEGORIES}
    for code in range(0x110000):
        if (kind := unicodedata.category(chr(code))) in of:
            of[kind].append(chr(code))
    for number in range(count):
        hidden = of[CATEGORIES[number % len(CATEGORIES)]]
        parts = [*rng.choices(hidden, k=4), *rng.choices(MARKS, k=4), "n"]
        rng.shuffle(parts)
        yield "".join(parts)


ALL = [name.replace(".", "") for name in (*NAMES, *draw(0))]  # PyTorch allows no dot


def is_plain(text):
    return all(map(str.isprintable, text.split("\n")))


def wrong(name, folder):
    """The report of a port that is wrong in a module of this name, and all its files."""
    made = named(name)
    module = getattr(made.nnx_module, name)
    module.kernel[...] = module.kernel[...] * 1.5
    report = made.report()
    assert report.verdict == "FAIL"
    report.write(folder)
    return report


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The files and the report of a wrong port with a name that has nothing in it."""
    folder = tmp_path_factory.mktemp("usual")
    return folder, wrong("usual", folder)


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_a_name_is_data(name, harmless, tmp_path):
    assert tags_of(named(name), tmp_path) == harmless
    back = parity.Report.from_json(tmp_path)
    assert [row.path for row in back.rows] == [name, ""]
    text = (tmp_path / "report.json").read_text("utf-8")
    assert text.isascii()
    json.loads(text)
    ET.parse(tmp_path / "junit.xml")
    with (tmp_path / "layers.csv").open(newline="", encoding="utf-8") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    mark = "'" if name[0] in "=+-@" else ""
    assert paths == [mark + escaped(name), ""]
    shown = CliRunner().invoke(cli, ["show", str(tmp_path)])
    assert shown.exit_code == 0
    assert is_plain(shown.output)


@pytest.mark.parametrize("name", ALL, ids=range(len(ALL)))
def test_a_fault_of_that_name_can_be_read_everywhere(name, usual, tmp_path):
    """No format has a line, a cell or a tag more for it, or a character that cannot be seen."""
    report = wrong(name, tmp_path)
    for file in ("report.md", "report.json", "report.html", "junit.xml", "layers.csv"):
        text, before = ((place / file).read_text("utf-8") for place in (tmp_path, usual[0]))
        assert is_plain(text), file
        if file != "report.html":  # how long the name is decides on a line of it
            assert text.count("\n") == before.count("\n"), file
    assert is_plain(str(report))
    assert str(report).count("\n") == str(usual[1]).count("\n")
    assert is_plain(assess(report).failure)
    pages = [(place / "report.md").read_text("utf-8") for place in (tmp_path, usual[0])]
    outside = re.sub("`[^`\n]+`", "", re.sub(r"\\.", "", pages[0]))
    assert not re.search(r"<[a-z/!]|\]\(|&#", outside)
    tables = ([line for line in page.split("\n") if line.startswith("|")] for page in pages)
    cells = [[len(re.findall(r"(?<!\\)\|", line)) for line in table] for table in tables]
    assert cells[0] == cells[1]


EVIL = "=1\x9b2J\u202e\x1b]0;t\x07\n\n# all: PASS\n<img src=x>|`"


def of(theirs, ours, **parts):
    """A reference and a wrong port that are functions of their argument, and of a child `c`."""

    def child(self, x, word=""):
        return (2 + len(word)) * (x[EVIL] if isinstance(x, dict) else x)

    reference = torch_of(lambda self, x: theirs(self.c, x), c=torch_of(child))
    return compared(reference, nnx_of(lambda self, x: ours(self.c, x), c=nnx_of(child), **parts))


def parameter():
    """A parameter of this name, and another in the port."""
    made = of(lambda c, x: c(x), lambda c, x: c(x) * 3, **{EVIL: nnx.Param(jnp.full(4, 3.0))})
    made.torch_module.register_parameter(
        EVIL.replace(".", ""), torch.nn.Parameter(torch.full((4,), 2.0))
    )
    return made


def raising():
    """A reference that refuses float64 with this text."""

    def call(c, x):
        if x.dtype == torch.float64:
            raise ValueError(EVIL)
        return c(x)

    return of(call, lambda c, x: c(x) * 3)


TEXTS = {
    "an output": lambda: of(lambda c, x: {EVIL: c(x)}, lambda c, x: {EVIL: c(x) * 3}),
    "an output of one side": lambda: of(lambda c, x: {"a": c(x), EVIL: x}, lambda c, x: {"a": x}),
    "an argument": lambda: of(lambda c, x: c({EVIL: x}), lambda c, x: c({EVIL: x * 3})),
    "a value": lambda: of(lambda c, x: (c(x), EVIL), lambda c, x: (c(x), EVIL + "x")),
    "a value handed on": lambda: of(lambda c, x: c(x, EVIL) - 1, lambda c, x: c(x, EVIL * 2) - 1),
    "a parameter": parameter,
    "an error": raising,
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_any_other_text_is_data_too(make, tmp_path):
    report = make().report()
    assert report.verdict in ("FAIL", "UNKNOWN")
    assert "2J" in str(report) + "".join(row.leaf for row in report.rows)
    report.write(tmp_path)
    for file in ("report.md", "report.json", "report.html", "junit.xml", "layers.csv"):
        assert is_plain((tmp_path / file).read_text("utf-8")), file
    ET.parse(tmp_path / "junit.xml")
    images = re.findall("<img[^>]*>", (tmp_path / "report.html").read_text("utf-8"))
    pictures = re.compile(
        '<img src="data:image/png;base64,[a-zA-Z0-9+/=]+" alt="The error by place" '
    )
    assert all(map(pictures.match, images))
    page = re.sub(r"\\.", "", (tmp_path / "report.md").read_text("utf-8"))
    assert not re.search(r"<[a-z/!]|\]\(|&#|\n# all", re.sub("`[^`\n]+`", "", page))
    with (tmp_path / "layers.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith("=")]
    assert is_plain(str(report))
    assert "\n# all" not in str(report)
    assert is_plain(assess(report).failure)
