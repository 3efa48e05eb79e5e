"""The site has every page, and no page is lost on a code host."""

import re

import yaml

from parity.cli.command import cli
from tests.docs.documents import ROOT

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def leaves(nav):
    """The pages of a navigation, in their order."""
    for entry in nav:
        for page in entry.values():
            yield from leaves(page) if isinstance(page, list) else (page,)


def test_every_page_is_in_the_navigation():
    pages = list(leaves(SITE["nav"]))
    outside = {"changelog.md", "contributing.md"}
    assert len(pages) == len(set(pages))
    assert set(pages) == {path.name for path in (ROOT / "docs").glob("*.md")} | outside


def test_every_command_is_in_the_table():
    table = (ROOT / "docs" / "command-line.md").read_text()
    assert set(re.findall(r"`parity (\w+)", table.partition("\n\nThe exit code")[0])) == set(
        cli.commands
    )


def test_the_readme_is_one_screen_after_another():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    fault = next(i for i, line in enumerate(lines) if line.startswith("fault: "))
    assert fault < 55


def test_the_readme_repeats_no_sentence_of_a_page():
    def sentences(path):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"\]\([^)]*\)", "]", " ".join(text.split()))
        return {one for one in re.split(r"(?<=[.:])\s", text) if len(one) > 30}

    ours = sentences(ROOT / "README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert not ours & sentences(page), page
