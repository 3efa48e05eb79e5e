"""The pytest plugin: fixture `assert_parity`, marker `parity`, a summary, properties for JUnit.

It is loaded into every run of pytest where it is installed: what takes long to import is imported
by the first comparison.
"""

import hashlib
import inspect
import itertools
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from parity.core.exceptions import InputError, escaped

if TYPE_CHECKING:
    import torch
    from flax import nnx

    from parity.report import Report
    from parity.report.assertion import Assertion

MARKER = "parity"

LINES = "parity_lines"
"""The attribute of a test's report that holds its lines of the summary. pytest-xdist hands such
attributes from its workers to the process that prints."""

LONGEST = 120
"""Characters of a folder's name, without its digest and label."""

_LINES = pytest.StashKey[list[dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the folder of reports, and the grade asserted where a test names none."""
    group = parser.getgroup("parity", "numerical parity of PyTorch modules and their NNX ports")
    group.addoption(
        "--parity-report",
        metavar="DIR",
        help="write the report of every assert_parity to a folder in DIR, named after its test",
    )
    group.addoption(
        "--parity-grade",
        metavar="NAME",
        help="grade (perfect, excellent, good, ...) that every output of assert_parity must have, "
        "where neither the test nor its marker names one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse options that no comparison could use."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**options): compares a PyTorch module with its port, as every test that uses "
        "assert_parity does; the options are defaults for it",
    )
    grade, folder = config.getoption("parity_grade"), config.getoption("parity_report")
    try:
        if grade is not None:
            from parity.report.assertion import check_grade

            check_grade(grade)
        if folder is not None and not config.option.collectonly:
            from parity.core.files import writable

            writable(config.invocation_params.dir / folder, "--parity-report")
    except InputError as error:
        raise pytest.UsageError(f"parity: {error}") from error


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that use the fixture, so that `-m parity` selects them."""
    uses = "assert_parity" in getattr(item, "fixturenames", ())
    if uses and item.get_closest_marker(MARKER) is None:
        item.add_marker(MARKER)


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> "AssertParity":
    """Compare a PyTorch module with its NNX port; fail unless it is a PASS or a WARN.

    `assert_parity(torch_module, nnx_module, torch_args, *, grade=None, name=None, **options)`
    returns the report. See `AssertParity.__call__`.
    """
    return AssertParity(request.node)


class AssertParity:
    """The comparisons of one test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._labels: set[str] = set()

    def __call__(
        self,
        torch_module: "torch.nn.Module",
        nnx_module: "nnx.Module",
        torch_args: tuple[Any, ...],
        *,
        grade: str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> "Report":
        """Compare, and fail the test if a gate does not hold or something was not compared.

        Args:
            torch_module: the reference.
            nnx_module: the port.
            torch_args: the arguments, channel-first.
            grade: assert too that every output of every call has this grade or a better one, by
                its inclusive MAE; by default what the marker names, else `--parity-grade`.
            name: what this comparison is called in the summary, in the properties and in the name
                of its folder; by default all but the first of a test are numbered.
            **options: those of `parity.compare`; the marker's hold where they are left out.

        Raises:
            AssertionError: parity does not hold; the message names module and cause.
            InputError: the arguments cannot be used.
        """
        __tracebackhide__ = True
        from parity.pipeline import compare
        from parity.report.assertion import assess, check_grade

        option = self._item.config.getoption("parity_grade")
        try:
            marked = _marked(self._item)
            grade = marked.get("grade", option) if grade is None else grade
            name = marked.get("name") if name is None else name
            options = {key: marked[key] for key in marked if key not in ("grade", "name")} | options
            check_grade(grade)
            _check_options(options, compare)
            report = compare(torch_module, nnx_module, torch_args, **options)
        except InputError as error:
            raise error.with_traceback(None) from None  # the line of the test says more
        found = assess(report, grade)
        label = self._label(name)
        self._record(report, found, label)
        where = self._write(report, label)
        if found.failure:
            raise AssertionError(f"{found.failure}\n{where}")
        return report

    def _label(self, name: str | None) -> str:
        """The name, or the number, that tells this comparison from the others of its test."""
        wanted = _plain(name or "")
        numbered = (f"{wanted}-{number}".lstrip("-") for number in itertools.count(2))
        label = next(x for x in itertools.chain([wanted], numbered) if x not in self._labels)
        self._labels.add(label)
        return label

    def _record(self, report: "Report", found: "Assertion", label: str) -> None:
        from parity.report.sections import number
        from parity.report.table import worst

        worst_r = worst(report.rows).r
        fault = report.first_fault
        properties = {
            "verdict": found.verdict,
            "worst_r": f"{worst_r:.6g}",
            "first_fault": fault.name if fault else "",
            "cause": fault.cause if fault else "",
        }
        suffix = f"-{label}" if label else ""
        self._item.user_properties += [
            (f"{key}{suffix}", escaped(x)) for key, x in properties.items()
        ]
        line = {
            "verdict": found.verdict,
            "r": number(worst_r),
            "test": self._item.nodeid + (f" [{label}]" if label else ""),
            "brief": found.brief,
        }
        self._item.stash.setdefault(_LINES, []).append(line)

    def _write(self, report: "Report", label: str) -> str:
        config = self._item.config
        chosen = config.getoption("parity_report")
        if chosen is None:
            return "--parity-report=DIR writes the whole table"
        folder = config.invocation_params.dir / chosen / folder_name(self._item.nodeid, label)
        report.write(folder)
        return f"report: {folder / 'report.html'}"


def _marked(item: pytest.Item) -> dict[str, Any]:
    """The options of the markers, those nearest to the test before others."""
    options: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(MARKER))):
        if marker.args:
            raise InputError(
                f"marker {MARKER}: expected keywords such as grade='excellent', found {marker.args}"
            )
        options |= marker.kwargs
    return options


def _check_options(options: dict[str, Any], compare: Any) -> None:
    known = list(inspect.signature(compare).parameters)[3:]
    for name in options:
        if name not in known:
            raise InputError(
                f"assert_parity has no option {name!r}: expected grade, name or one of "
                f"{', '.join(known)}"
            )


def folder_name(nodeid: str, label: str = "") -> str:
    """The folder of a comparison: the test's id with dashes, and a digest of the id where another
    test could have the same ones.
    """
    name = _plain(nodeid)
    if name != nodeid.replace("::", "-").replace("/", "-") or "-" in nodeid:
        name += f"-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"
    return f"{name}-{label}" if label else name


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:LONGEST]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand the lines of a phase of a test to whoever prints the summary."""
    report = yield
    if _LINES in item.stash:
        setattr(report, LINES, item.stash[_LINES])
        del item.stash[_LINES]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Verdict, worst R, test, and what is wrong first: a line for every comparison."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    compared = sorted((x for x in reports if hasattr(x, LINES)), key=lambda report: report.start)
    if not compared:
        return
    from parity.report.table import COLOURS

    terminalreporter.section(MARKER)
    for line in itertools.chain.from_iterable(getattr(report, LINES) for report in compared):
        text = f"{line['verdict']:<7}  R {line['r']:<8}  {line['test']}"
        brief = f"  {line['brief']}" if line["brief"] else ""
        terminalreporter.write_line(escaped(text + brief), **{COLOURS[line["verdict"]]: True})
