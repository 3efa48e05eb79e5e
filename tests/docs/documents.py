"""What a Markdown document shows: its code, its commands, and what they are said to print."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = tuple(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "examples" / "README.md",
        *ROOT.glob("CONTRIBUTING.md"),
    )
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (test|file): ([^>]*) -->\n+\Z")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FIGURE = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")
ROUNDING = 1e-4
"""Figures below it are not compared: they depend on the machine."""

TOOLS = ("parity", "jaxvae", "make", "python")


@dataclass(frozen=True)
class Block:
    """A fenced block; `about` is the comment above it, as in `<!-- file: port.py -->`."""

    line: int
    language: str
    text: str
    about: tuple[str, str]


@dataclass(frozen=True)
class Printed:
    """A command after `$ `, and the lines below it."""

    line: int
    command: list[str]
    output: str


def blocks(name: str) -> list[Block]:
    text = (ROOT / name).read_text()
    found = []
    for fence in FENCE.finditer(text):
        comment = COMMENT.search(text[: fence.start()])
        about = (comment[1], comment[2].strip()) if comment else ("", "")
        line = text[: fence.start()].count("\n") + 2
        found.append(Block(line, fence[1], fence[2], about))
    return found


def commands(name: str) -> list[list[str]]:
    """Every command of the tools, in a block or in a line of text."""
    shown = [line.removeprefix("$ ") for block in blocks(name) if block.language in ("", "console")
             for line in block.text.splitlines()]  # fmt: skip
    text = FENCE.sub("", (ROOT / name).read_text())
    shown += [span[1].replace("\n", " ") for span in SPAN.finditer(text)]
    return [words for words in map(words_of, shown) if words]


def words_of(line: str) -> list[str]:
    """The words of a line, if it is a command of ours: `['parity', 'run']`; else none."""
    line = re.sub(r"^(?:[A-Z_]+=\S* +)+", "", line)
    line = re.sub(r"^(?:\.\./)*\.venv/bin/", "", line)
    if line.split(" ")[0] not in TOOLS or line.endswith(": PASS"):
        return []
    return shlex.split(re.split(r"  \[| \| ", line)[0], comments=True)


def printed(block: Block) -> list[Printed]:
    """The commands of a `console` block, each with what is shown below it."""
    found: list[Printed] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            found.append(Printed(number, shlex.split(line[2:]), ""))
        else:
            last = found.pop()
            found.append(Printed(last.line, last.command, f"{last.output}{line}\n"))
    return found


def difference(shown, found):
    """What of `shown` is not in `found`, one part after the other; nothing if all is.

    Figures may be 20 % off.
    """
    found = " ".join(found.split())
    for part in (" ".join(part.split()) for part in shown.split("...")):
        pattern = FIGURE.sub("FIGURE", part)
        match = re.search(re.escape(pattern).replace("FIGURE", rf"({FIGURE.pattern})"), found)
        if match is None:
            return f"not printed: {part!r}"
        for ours, theirs in zip(FIGURE.findall(part), match.groups(), strict=True):
            off = abs(float(ours) - float(theirs)) > 0.2 * float(theirs)
            if off and float(theirs) > ROUNDING:
                return f"{theirs} instead of {ours} in {part!r}"
        found = found[match.end() :]
    return ""
