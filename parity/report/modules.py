"""Modules of a report as a tree, with the worst errors of each one's calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from parity.core.globs import ROOT
from parity.core.verdicts import Row, Verdict
from parity.report.contents import Contents
from parity.report.faults import grouped_faults
from parity.report.table import Worst, grouped, worst, worst_verdict


@dataclass(frozen=True)
class Module:
    """A module by path: its rows, the modules inside it, and what is at fault.

    `verdict` is the worst of its own rows; without rows FAIL if it lacks a counterpart, else `""`.
    `fault` is the number of its fault, 0 if it has none, `faults` how many are inside it. Equal
    faults have one number, as everywhere.
    """

    path: str
    rows: Sequence[Row]
    verdict: Verdict | str
    fault: int
    inside: tuple["Module", ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2] or ROOT

    @property
    def kind(self) -> str:
        """The class of the module."""
        return self.rows[0].kind if self.rows else ""

    @property
    def calls(self) -> int:
        """Number of its calls that have rows."""
        return len({(row.case, row.call) for row in self.rows})

    @cached_property
    def worst(self) -> Worst:
        """The largest errors of its calls."""
        return worst(self.rows)

    @property
    def faults(self) -> int:
        """Number of modules at fault inside it, its own left out."""
        return sum(bool(module.fault) for module in self.below())

    def below(self) -> Iterator["Module"]:
        """All modules inside it, at any level, each before those inside it."""
        for module in self.inside:
            yield module
            yield from module.below()


def module_tree(report: Contents) -> Module:
    """The root, with everything that has a row or lacks a counterpart."""
    rows = grouped(report.rows, lambda row: row.path)
    children: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path in (*rows, *report.coverage.unmatched):
        below = path
        while below and below not in seen:
            seen.add(below)
            above = below.rpartition(".")[0]
            children.setdefault(above, []).append(below)
            below = above
    groups = enumerate(grouped_faults(report.faults), 1)
    faults = {fault.path: number for number, group in groups for fault in group}
    unmatched = frozenset(report.coverage.unmatched)

    def module(path: str) -> Module:
        own: Sequence[Row] = rows.get(path, ())
        verdict = "FAIL" if path in unmatched else ""
        return Module(
            path=path,
            rows=own,
            verdict=worst_verdict([row.verdict for row in own]) if own else verdict,
            fault=faults.get(path, 0),
            inside=tuple(map(module, children.get(path, ()))),
        )

    return module("")
