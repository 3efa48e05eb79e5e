"""The pytest plugin in projects of others: pytest is run on them, with real comparisons."""

import json
import math
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

import parity
import parity.pipeline  # in this process: torch and jax cannot be imported again in each run
from parity import pytest_plugin
from parity.core.measurements import Error, Metrics
from parity.core.verdicts import Coverage, Row
from parity.report import Report
from parity.report.assertion import assess

NAN = math.nan

ROOT = Path(parity.__file__).parents[1]

MODEL = """
import numpy as np
import torch

images = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(64, 32)
        self.second = torch.nn.Linear(32, 16)

    def forward(self, x):
        return self.second(self.first(x).tanh())
"""

PORT = """
import jax.numpy as jnp
from flax import nnx

class Port(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, 32, rngs=rngs)
        self.second = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))

def ported(model, wrong=0.0):
    port = Port(nnx.Rngs(0))
    for name in ("first", "second"):
        reference, own = getattr(model, name), getattr(port, name)
        own.kernel[...] = jnp.asarray(reference.weight.detach().numpy().T)
        own.bias[...] = jnp.asarray(reference.bias.detach().numpy())
    port.second.bias[...] = port.second.bias[...] + wrong
    return port
"""

BEGIN = """
import pytest
import torch
from flax import nnx
from model import Model, images
from port import Port, ported

model = Model().eval()
pytestmark = pytest.mark.parity(check_compiled=False)
"""


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Everything imported that a comparison imports: what a run in this process imports is
    forgotten after it."""
    made = {}
    exec(MODEL + PORT, made)
    model = made["Model"]()
    report = parity.compare(
        model, made["ported"](model, 1.0), (made["images"],), check_compiled=False
    )
    report.write(tmp_path_factory.mktemp("warm"))


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with a model and its port, without any other plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(model=MODEL, port=PORT)
    return pytester


@pytest.fixture
def run(project, warm):
    """Runs tests in this process."""

    def run(source, *options):
        project.makepyfile(test_port=source)
        return project.runpytest_inprocess("-p", "parity.pytest_plugin", *options)

    return run


def properties(path):
    """Of every test that has some, by its name."""
    return {
        case.get("name"): {one.get("name"): one.get("value") for one in case.iter("property")}
        for case in ET.parse(path).iter("testcase")
        if case.find("properties") is not None
    }


def test_pytest_finds_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"parity": "parity.pytest_plugin"}


def test_the_five_lines_of_the_page(run, project):
    section = (ROOT / "docs" / "pytest.md").read_text()
    source = section.split("```python\n")[1].split("```")[0]
    assert len([line for line in source.splitlines() if line]) == 5
    project.makepyfile(test_other="def test_other(): pass")
    done = run(source, "--strict-markers", "-m", "parity")
    done.assert_outcomes(passed=1, deselected=1)
    done.stdout.re_match_lines([r"=+ parity =+", r"PASS +R [\d.]+ +test_port.py::test_the_port$"])


def test_a_failure_names_the_module_and_the_cause(run, project):
    source = """
def test_wrong(assert_parity):
    assert_parity(model, ported(model), (images,))
    assert_parity(model, ported(model, 0.1), (images,), name="one more")
"""
    done = run(BEGIN + source, "--parity-report=out", "--junitxml=junit.xml")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=1)
    folder = project.path / "out" / "test_port.py-test_wrong-one-more"
    done.stdout.fnmatch_lines([
        '>*assert_parity(model, ported(model, 0.1), (images,), name="one more")',
        "E*AssertionError: parity FAIL: `second`: weights_value",
        "E*- modules: 3 matched *",
        "E*fault: weights_value",
        "E*where    second (Linear), call 0 of __call__",
        "E*do this  *",
        f"E*report: {folder / 'report.html'}",
        "PASS*R *test_port.py::test_wrong",
        "FAIL*R *e+*test_port.py::test_wrong [[]one-more[]]  `second`: weights_value",
        "FAILED test_port.py::test_wrong - AssertionError: parity FAIL: `second`: *",
    ])  # fmt: skip
    assert "pytest_plugin.py" not in done.stdout.str()
    assert json.loads((folder / "report.json").read_text())["verdict"] == "FAIL"
    assert {path.name for path in (project.path / "out").iterdir()} == {
        "test_port.py-test_wrong", folder.name,
    }  # fmt: skip
    found = properties(project.path / "junit.xml")["test_wrong"]
    assert (found["verdict"], found["first_fault"], found["cause"]) == ("PASS", "", "")
    assert float(found["worst_r"]) < 3
    assert found["verdict-one-more"] == "FAIL"
    assert found["first_fault-one-more"] == "second"
    assert found["cause-one-more"] == "weights_value"
    assert float(found["worst_r-one-more"]) > 1e4


def test_what_was_not_compared_fails_and_a_warning_is_shown(run):
    source = """
class Extra(Model):
    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Linear(16, 16)

    def forward(self, x):
        y = super().forward(x)
        self.extra(y)
        return y

class Opaque(torch.nn.Module):
    def forward(self, x):
        return -x, object()

class OpaquePort(nnx.Module):
    def __call__(self, x):
        return -x, object()

def test_incomplete(assert_parity):
    assert_parity(Extra().eval(), ported(model), (images,))

def test_unknown(assert_parity):
    assert_parity(Opaque(), OpaquePort(), (images,))

class Twice(nnx.Module):
    def __call__(self, x):
        return -x, x

class Alone(torch.nn.Module):
    def forward(self, x):
        return (-x,)

def test_warn(assert_parity):
    assert assert_parity(Alone(), Twice(), (images,)).verdict == "WARN"
"""
    done = run(BEGIN + source)
    done.assert_outcomes(failed=2, passed=1)
    done.stdout.fnmatch_lines([
        "E*parity mapping incomplete: without a counterpart are 1 module (extra), *",
        "E*- unmatched *extra*",
        "E*parity UNKNOWN: `<root>#1`: not compared: object is no array*",
        "FAIL*test_incomplete  mapping incomplete: without a counterpart are 1 module (extra), *",
        "UNKNOWN*test_unknown  `<root>#1`: *",
        "WARN*test_warn  only the port returns 1 of the outputs: <root>#1",
    ])  # fmt: skip


GRADES = """
class Off(nnx.Module):
    \"\"\"A layer whose outputs are off by four roundings: R is about 1, and the MAE that of outputs
    of size 1e5.\"\"\"

    def __init__(self, layer):
        self.kernel, self.bias, self.layer = layer.kernel, layer.bias, layer

    def __call__(self, x):
        return self.layer(x) * (1 + 2**-22)

def compared(assert_parity, **options):
    port = ported(model)
    port.first = Off(port.first)
    assert_parity(model, port, (images * 1e6,), **options)

@pytest.mark.parity(grade="perfect")
def test_marker(assert_parity):
    compared(assert_parity)

@pytest.mark.parity(grade="perfect")
def test_argument(assert_parity):
    compared(assert_parity, grade="severe")

def test_option(assert_parity):
    compared(assert_parity)
"""


def test_grades(run):
    done = run(BEGIN + GRADES, "--parity-grade=excellent")
    done.assert_outcomes(failed=2, passed=1)
    done.stdout.re_match_lines([
        r"E .*parity FAIL: `first`: grade \w+, not perfect",
        r"E +`first`, call 0 of __call__, is the first of \d outputs that are not perfect, MAE "
        r"below 1e-06: \d",
        r"E .*parity FAIL: `first`: grade \w+, not excellent",
        r"FAIL +R [\d.]+ +test_port.py::test_marker  `first`: grade \w+, not perfect",
        r"PASS +R [\d.]+ +test_port.py::test_argument$",
        r"FAIL +R [\d.]+ +test_port.py::test_option  `first`: grade \w+, not excellent",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "free", "verdict"),
    [("", NAN, "PASS"), ("not measured: no input", 1e-9, "PASS"), ("not measured", 0.5, "FAIL"),
     ("not measured: no input has a counterpart", NAN, "FAIL")],
)  # fmt: skip
def test_what_could_not_be_measured_has_no_grade(problem, free, verdict):
    error = Error.unknown(problem) if problem else Error(NAN, NAN, 0)
    row = Row(
        "", "c", "a", "a", "M", 0, "", (2,), "float32", Metrics(*[free] * 10, (), 0),
        error, error, 1.0, "",
        "PASS", "", 0, -1,
    )  # fmt: skip
    coverage = Coverage(1, ("a",), {}, (), {}, 1, 1)
    assert assess(Report("r", (row,), (), coverage, {}, {}), "perfect").verdict == verdict


def test_without_a_grade_r_decides(run):
    run(BEGIN + GRADES, "-k", "test_option").assert_outcomes(passed=1, deselected=2)


def test_a_report_that_cannot_be_written_fails_the_test(run, project):
    source = """
def test_right(assert_parity):
    assert_parity(model, ported(model), (images,))
"""
    (project.path / "out").mkdir()
    (project.path / "out" / "test_port.py-test_right").touch()
    done = run(BEGIN + source, "--parity-report=out")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E*FileExistsError: *test_port.py-test_right*", "PASS*test_right"])


def test_wrong_use_is_one_line(run):
    source = """
def test_grade(assert_parity):
    assert_parity(model, ported(model), (images,), grade="excelent")

def test_option(assert_parity):
    assert_parity(model, ported(model), (images,), sede=1)

@pytest.mark.parity("excellent")
def test_marker(assert_parity):
    assert_parity(model, ported(model), (images,))

def test_array(assert_parity):
    assert_parity(model, ported(model), images)
"""
    done = run(BEGIN + source)
    done.assert_outcomes(failed=4)
    done.stdout.fnmatch_lines([
        "E*InputError: grade 'excelent': expected one of perfect, excellent, good, *",
        "E*InputError: assert_parity has no option 'sede': expected grade, name or one of *",
        "E*InputError: marker parity: expected keywords such as *, found ('excellent',)",
        "E*InputError: torch_args: expected a tuple of arguments, found a bare ndarray",
    ])  # fmt: skip
    assert "pipeline.py" not in done.stdout.str()


@pytest.mark.parametrize(
    ("option", "message"),
    [("--parity-grade=excelent", "ERROR: parity: grade 'excelent': expected one of perfect, *"),
     ("--parity-report=model.py", "ERROR: parity: *model.py: cannot be made *--parity-report")],
)  # fmt: skip
def test_wrong_options_end_the_run(run, option, message):
    done = run("def test_nothing(): pass", option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([message])


def test_collecting_makes_no_folder(run, project):
    assert run("def test_nothing(): pass", "--parity-report=out", "--collect-only").ret == 0
    assert not (project.path / "out").exists()


def test_a_run_without_comparisons_imports_nothing_heavy(project):
    source = """
import sys
import pytest

@pytest.fixture
def unused(assert_parity):
    return assert_parity

@pytest.mark.parity(seed=1)
def test_plain():
    pass

def test_fixture(unused):
    heavy = {"torch", "jax", "flax", "numpy", "pandas", "rich", "click", "jinja2"}
    assert not heavy & set(sys.modules)
"""
    project.makepyfile(test_plain=source)
    done = project.runpytest_subprocess("-p", "parity.pytest_plugin", "--strict-markers")
    done.assert_outcomes(passed=2)
    assert not re.search("=+ parity =+", done.stdout.str())


@pytest.mark.slow
def test_workers_of_xdist(project):
    source = """
@pytest.mark.parametrize("wrong", [0.0, 0.1], ids=["a/b", "a-b"])
def test_port(assert_parity, wrong):
    assert_parity(model, ported(model, wrong), (images,))
"""
    project.makepyfile(test_port=BEGIN + source)
    done = project.runpytest_subprocess(
        "-p", "xdist", "-n", "2", "-p", "parity.pytest_plugin", "--parity-report=out",
        "--junitxml=junit.xml",
    )  # fmt: skip
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.re_match_lines_random([
        r"PASS +R .* test_port.py::test_port\[a/b\]$",
        r"FAIL +R .* test_port.py::test_port\[a-b\]  `second`: weights_value$",
    ])  # fmt: skip
    found = properties(project.path / "junit.xml")
    assert {name: one["verdict"] for name, one in found.items()} == {
        "test_port[a/b]": "PASS", "test_port[a-b]": "FAIL",
    }  # fmt: skip
    folders = sorted((project.path / "out").iterdir())
    assert [re.sub("[0-9a-f]{8}$", "", path.name) for path in folders] == [
        "test_port.py-test_port-a-b-",
    ] * 2  # fmt: skip
    verdicts = {json.loads((path / "report.json").read_text())["verdict"] for path in folders}
    assert verdicts == {"PASS", "FAIL"}


def test_the_summary_holds_nothing_that_a_terminal_obeys():
    line = {"verdict": "FAIL", "r": "2", "test": "t[\x9b]", "brief": "`\u202e\x1b]0;x\x07\n# PASS`"}
    report, written = SimpleNamespace(start=0, **{pytest_plugin.LINES: [line]}), []
    pytest_plugin.pytest_terminal_summary(
        SimpleNamespace(
            stats={"failed": [report]},
            section=lambda name: None,
            write_line=lambda text, **how: written.append(text),
        )
    )
    assert len(written) == 1
    assert written[0].isprintable()
