"""The public names, and how they behave as objects of Python."""

import doctest
import inspect
import json
import re
import textwrap
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
from rich.console import Console

import parity
from parity.core.verdicts import Fault
from parity.report.terminal import show
from tests.commands import python
from tests.reports import compare

FRAMEWORKS = ("torch", "jax", "flax", "numpy", "pandas")


def loaded(code, names):
    """Which of these packages or modules are imported after the code has run, in a new process."""
    ask = f"import json, sys\nprint(json.dumps([n for n in {list(names)} if n in sys.modules]))"
    printed = python("-c", f"{textwrap.dedent(code)}\n{ask}")
    return json.loads(printed.splitlines()[-1])


def seconds(*words):
    """Time on the processor of the fastest of three runs: others may be running."""
    found = []
    for _ in range(3):
        before = getrusage(RUSAGE_CHILDREN)
        python(*words)
        after = getrusage(RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


@pytest.mark.parametrize(
    ("words", "code", "limit"),
    [
        (("-c", "import parity"), "import parity", 0.1),
        (("-m", "parity", "--help"), "import parity.cli, parity.cli.command", 0.3),
    ],
    ids=["import parity", "parity --help"],
)
def test_no_framework_is_imported_before_it_is_needed(words, code, limit):
    assert loaded(code, FRAMEWORKS) == []
    empty = seconds("-c", "")  # of a slow machine the interpreter itself takes longer
    assert seconds(*words) < max(limit, 6 * empty)


OPTIONAL = ("parity.gradients", "parity.traces", "parity.selftest", "parity.report.html")


def test_a_comparison_imports_what_it_does_and_no_more():
    assert loaded("import parity.pipeline", OPTIONAL) == []
    example = doctest.script_from_examples(inspect.getdoc(parity.compare)).split("'PASS'")[0]
    assert loaded(example.replace("## ", "# "), OPTIONAL) == []


def test_every_public_name_is_there_and_listed():
    assert parity.__version__ == version("nnx-parity")
    assert {*parity.__all__, "__version__"} <= set(dir(parity))
    assert parity.__all__ == sorted(parity.__all__)
    for name in parity.__all__:
        assert getattr(parity, name) is getattr(parity, name)
    with pytest.raises(AttributeError, match="has no attribute 'comapre'"):
        parity.comapre  # noqa: B018


def test_a_pair_needs_no_name_that_is_not_public():
    pairs = sorted((Path(parity.__file__).parents[1] / "jaxvae" / "pairs").rglob("*.py"))
    assert pairs
    for file in pairs:
        assert not re.findall(r"^\s*(?:from|import) parity\.", file.read_text(), re.M), file


def test_the_example_of_compare_runs():
    test = doctest.DocTestParser().get_doctest(
        inspect.getdoc(parity.compare), {}, "compare", None, 0
    )
    assert len(test.examples) > 5
    assert doctest.DocTestRunner().run(test).failed == 0


def test_help_has_arguments_returns_raises_and_an_example():
    text = inspect.getdoc(parity.compare)
    assert re.findall(r"^(\w+):$", text, re.M) == ["Args", "Returns", "Raises", "Example"]
    documented = re.findall(r"^    (\w+): ", text.partition("Returns:")[0], re.M)
    parameters = inspect.signature(parity.compare).parameters
    assert documented == list(parameters)
    keywords = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    assert keywords == list(parameters)[3:]


@pytest.mark.parametrize(
    "name",
    ["method", "weights", "modes", "noise_floor", "jitted", "disable_jit", "repro", "cache"],
)
def test_an_argument_that_there_is_not_is_pythons_own_error(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        parity.compare(None, None, (), **{name: None})


def test_only_a_pass_is_true(pair, image, report):
    healthy = compare(*pair, (image,))
    assert bool(healthy) is healthy.holds is True
    assert bool(report) is report.holds is False
    warned = replace(healthy, partial="a part only")
    assert warned.verdict == "WARN"
    assert (bool(warned), warned.holds) == (False, True)


def test_a_report_reads_as_the_terminal_shows_it(report):
    console = Console(width=100, file=StringIO())
    show(report, console)
    assert str(report) == console.file.getvalue().rstrip("\n")
    assert str(report).endswith(f"{report.name}: FAIL")
    assert repr(report) == f"<Report {report.name}: FAIL, {len(report.rows)} rows, 1 faults>"


def test_a_fault_is_shown_in_a_line(report):
    (fault,) = report.faults
    assert repr(fault) == "<Fault stem (Conv2d), call 0 of __call__: weights_value>"
    long = Fault("a\n" * 300, 0, "", "forward", "Conv", "e")
    assert len(repr(long)) < 100
    assert repr(long).isprintable()
