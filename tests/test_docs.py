"""The documents do what they say: their code runs, and their commands exist.

All `python` blocks of a document run one after the other, with the same names, in an empty folder.
What they take for granted is in `tests/docs/context.py`. A comment above a block changes that:

    <!-- file: port.py -->            the block is written to this file instead; a `diff` block
                                      changes the lines of this file that it shows
    <!-- test: x, y = two() -->       this line runs before the block
    <!-- test: skip, REASON -->       the block cannot run, and why

A `console` block has commands of `parity` after `$ `. They run in the same folder, and what is
shown below them must be what they print; `...` stands for what is left out. Figures in it may be
20 % off; those below 1e-4 are roundings, which depend on the machine.
"""

import ast
import importlib
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from parity.cli.options import find_pair
from parity.cli.pair_command import OWN, PairCommand
from tests.docs.context import CONTEXT
from tests.docs.documents import DOCUMENTS, ROOT, blocks, commands, difference, printed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.path[:] = path
    forget(tmp_path)


def forget(folder):
    """The modules that were imported from there: their files may change."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


SLOW = ("CONTRIBUTING.md", "docs/jaxvae.md")
ELSEWHERE = ("docs/causes.md",)
"""What `tests/test_causes.py` runs, block by block."""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in DOCUMENTS
    if name not in ELSEWHERE
    and any(block.language in ("python", "console") for block in blocks(name))])  # fmt: skip
def test_code(name, folder, request):
    names = {"__name__": "document", **CONTEXT.get(name, dict)()}
    for block in blocks(name):
        what, about = block.about
        if what == "file":
            path = Path(about)
            path.write_text(edited(path, block) if block.language == "diff" else block.text)
        elif block.language == "console":
            for one in printed(block):
                forget(folder)
                runs(one, f"{name}:{one.line}")
        elif block.language == "python" and not about.startswith("skip, "):
            forget(folder)
            exec(about, names)
            code = ast.parse(block.text, f"{name}, block in line {block.line}")
            exec(compile(code, f"{name}:{block.line}", "exec"), names)
            for test in [names.pop(key) for key in list(names) if key.startswith("test_")]:
                test(request.getfixturevalue("assert_parity"))


def edited(path, block):
    """The text of a file with the lines changed as a `diff` block shows it."""
    lines = block.text.splitlines(keepends=True)
    old, new = ("".join(x[1:] for x in lines if x[0] in kept) for kept in ("- ", "+ "))
    assert path.read_text().count(old) == 1, f"not in {path}, or more than once: {old}"
    return path.read_text().replace(old, new)


def runs(one, where):
    """Run a command in this process, and compare what it prints."""
    tool, *arguments = one.command
    result = CliRunner().invoke(group(tool), arguments, catch_exceptions=False)
    differs = difference(one.output, result.output)
    assert not differs, f"{where}: {differs}\n{result.output}"
    assert result.exit_code == ("fault: " in one.output), f"{where}: exit code {result.exit_code}"


def group(tool):
    """The command line of a tool."""
    return importlib.import_module(f"{tool}.cli.command").cli


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands(name):
    for words in commands(name):
        tool, *rest = words
        problem = {"make": target, "python": script}.get(tool, option)(tool, rest)
        assert not problem, f"{name}: {' '.join(words)}: {problem}"


def target(_, words):
    """Whether the Makefile has it."""
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    return next((word for word in words if "=" not in word and word not in known), "")


def script(_, words):
    """Whether the file or module is there, with these options in it."""
    if not words:
        return ""
    if words[:1] == ["-m"]:
        module = words[1].split(".")
        if module[0] not in ("tools", "bench", "parity"):
            return ""
        path = ROOT.joinpath(*module[:-1], f"{module[-1]}.py")
        path = path if path.exists() else ROOT.joinpath(*module, "__main__.py")
        words = words[2:]
    else:
        path, words = ROOT / words[0], words[1:]
        if not path.parent.exists():
            return ""  # what a command before it wrote
    if not path.exists():
        return f"no {path.relative_to(ROOT)}"
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    around = path.read_text() + "".join(x.read_text() for x in path.parent.glob("options.py"))
    return next((f"no option {word}" for word in options if word not in around), "")


def option(tool, words):
    """Whether the tool has the command, with these options and as many arguments."""
    words = [word for word in words if word not in ("...", "…")]
    if not words or words[0].startswith("-"):
        return ""
    command = group(tool).commands.get(words[0])
    if command is None:
        return f"no command {words[0]}"
    context = click.Context(command)
    if isinstance(command, PairCommand):  # the documents' pairs have options of this one,
        if "my_pair:PAIR" in words:
            return ""  # or their document has a console block that runs
        context.meta[OWN] = command._own(find_pair("cogvideox"))
    try:
        spare = command.make_parser(context).parse_args(list(words[1:]))[1]
    except (click.MissingParameter, click.BadOptionUsage):
        return ""  # a command or option that is only named
    except click.UsageError as error:
        return error.format_message()
    return f"too many arguments: {spare}" if spare else ""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_places(name):
    """Files that are named are there, and so is `this` in `that/file.py`."""
    text = re.sub(r"\s+", " ", (ROOT / name).read_text())
    for path in re.findall(r"`((?:parity|jaxvae|tests|tools|bench|examples)/[\w./-]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
    for word, path in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", text):
        defined = rf"^ *(?:def|class) {word}\b|^{word}\b.* = |^    {word}: "
        assert re.search(defined, (ROOT / path).read_text(), re.M), f"no {word} in {path}"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / name).parent.joinpath(link).exists(), link


def test_what_would_be_wrong():
    assert difference("fault: here (R 2.0e+06)\n...\nPASS", "fault: here (R 2.1e+06) x PASS") == ""
    assert "not printed" in difference("fault: there", "fault: here")
    assert "instead of" in difference("R 2.0e+06", "R 4.0e+06")
    assert difference("MAE 3.0e-08", "MAE 9.0e-08") == ""
    assert option("parity", ["run", "--no-such"])
    assert option("parity", ["walk"])
    assert option("jaxvae", ["encode", "a", "b", "c"])
    assert target("make", ["rapport"])
    assert script("python", ["-m", "tools.no_such"])
