"""Hostile names of modules in every file and on the terminal: data, never markup or commands."""

import csv
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

import parity
from parity.cli import cli
from tests.hostile.modules import named

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


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_is_data(name, harmless, tmp_path):
    name = name.replace(".", "")  # PyTorch allows none
    assert tags_of(named(name), tmp_path) == harmless
    back = parity.Report.from_json(tmp_path)
    assert [row.path for row in back.rows] == [name, ""]
    json.loads((tmp_path / "report.json").read_text("utf-8"))
    ET.parse(tmp_path / "junit.xml")
    with (tmp_path / "layers.csv").open(newline="", encoding="utf-8") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert paths == [name.encode("utf-8", "backslashreplace").decode(), ""]
    shown = CliRunner().invoke(cli, ["show", str(tmp_path)])
    assert shown.exit_code == 0
    assert all(line.isprintable() for line in shown.output.splitlines())
