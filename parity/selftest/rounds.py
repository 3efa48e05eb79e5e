"""Trials of the harness on known mistakes: is each found, where it is, and for what it is?

A round draws a module for every mistake from the round's seed, makes the mistake there, and
compares the two models on the inputs, as `parity.compare` does. It also compares the port without
any mistake, and with three at once.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from parity.capture.nnx import submodules
from parity.core.exceptions import InputError
from parity.core.globs import renamed
from parity.core.lock import one_at_a_time
from parity.core.pair import Case, Mistake, Pair, PairOptions
from parity.host.progress import Progress
from parity.options.options import Options
from parity.report import Report
from parity.run.assemble import Comparison
from parity.run.loop import Usage, run_cases
from parity.run.running_port import RunningPort
from parity.run.running_reference import RunningReference
from parity.selftest.mistakes import GENERAL
from parity.selftest.trials import SelfTest, Trial

TRIPLES = 2
"""How many times three mistakes are made at once in each round."""

DRAWS = 5
"""A module in which a mistake changes nothing, such as an upsampling by one, is drawn again so
often."""


def selftest(
    pair: Pair,
    options: PairOptions | None = None,
    *,
    rounds: int = 1,
    seed: int = 0,
    only: str = "*",
    progress: Progress | None = None,
) -> SelfTest:
    """Try the harness on the port of `pair` with every known mistake whose name `only` matches.

    Raises:
        InputError: no mistake has that name, or an option of the pair cannot be used.
    """
    progress = progress or Progress()
    options = pair.resolved({**pair.selftest, **(options or {})})
    mistakes = [one for one in (*GENERAL, *pair.mistakes) if fnmatchcase(one.name, only)]
    if not mistakes:
        names = "; ".join(one.name for one in (*GENERAL, *pair.mistakes))
        raise InputError(f"no mistake is named {only!r}; there are {names}")
    singles: list[Trial] = []
    triples: list[Trial] = []
    healthy: list[Trial] = []
    for number in range(seed, seed + rounds):
        progress.title(f"round {number}")
        bench = _Bench(pair, options, number)
        progress.stage("mistakes", len(mistakes) + TRIPLES)
        healthy += bench.healthy
        tried: list[Mistake] = []
        for mistake in mistakes:
            trials = bench.try_one(mistake)
            singles += trials
            tried += [mistake] if trials else []
            progress.advance()
        for _ in range(TRIPLES):
            triples += bench.try_three(tried) if len(tried) >= 3 else []
            progress.advance()
    shown = {name for trial in singles for name in trial.mistakes}
    unshown = tuple(one.name for one in mistakes if one.name not in shown)
    return SelfTest(tuple(singles), tuple(triples), tuple(healthy), unshown)


@dataclass(frozen=True)
class _Ran:
    """A case that ran: the port's modules by path, and the errors of its outputs without any
    mistake.
    """

    case: Case
    modules: Mapping[str, Any]
    errors: tuple[float, ...]


class _Bench:
    """Both models of one seed, and which modules of the port run in which case."""

    def __init__(self, pair: Pair, options: PairOptions, seed: int) -> None:
        self._pair, self._seed, self._draw = pair, seed, random.Random(seed)
        self._reference = pair.make_torch(options, seed)
        self._port = pair.make_nnx(options, self._reference)
        modules = submodules(self._port)
        paths = [path for path, _ in self._reference.named_modules()]
        self._reference_path = {renamed(path, pair.rename): path for path in paths}
        self._ran: list[_Ran] = []
        self.healthy: list[Trial] = []
        outputs: dict[str, Mapping[str, Any]] = {}
        for case in pair.cases(self._reference, options, seed):
            if case.path or case.depth is not None:
                continue  # modules by themselves and the whole without its parts
            if case.args_from is not None:
                case = replace(case, args=case.args_from(outputs))
            report = self._compare(case)
            outputs[case.name] = report.outputs
            called = {row.nnx_path: modules[row.nnx_path] for row in report.rows}
            self._ran.append(_Ran(case, called, _at_the_output(report)))
            self.healthy.append(self._trial((), case, {}, report))

    def try_one(self, mistake: Mistake) -> list[Trial]:
        """Return one trial; none if no module of the port shows the mistake."""
        sites = [(path, ran) for ran in self._ran for path in _sites(mistake, ran)]
        self._draw.shuffle(sites)
        for path, ran in sites[:DRAWS]:
            trial = self._try([(mistake, path)], ran)
            if trial is not None:
                return [trial]
        return []

    def try_three(self, mistakes: Sequence[Mistake]) -> list[Trial]:
        """Return a trial of three mistakes in a module each; none if the port has no room."""
        for _ in range(10 * DRAWS):
            ran = self._draw.choice(self._ran)
            drawn = []
            for mistake in self._draw.sample(mistakes, 3):
                sites = _sites(mistake, ran)
                drawn += [(mistake, self._draw.choice(sites))] if sites else []
            trial = self._try(drawn, ran) if len({path for _, path in drawn}) == 3 else None
            if trial is not None:
                return [trial]
        return []

    def _try(self, drawn: Sequence[tuple[Mistake, str]], ran: _Ran) -> Trial | None:
        """Return a trial; none if only rounding changes the outputs, or two are in one module."""
        expected: dict[str, tuple[str, ...]] = {}
        files: dict[str, tuple[str, ...]] = {}
        with ExitStack() as planted:
            for mistake, path in drawn:
                plant = mistake.plant(ran.modules, path, self._draw)
                for wrong in planted.enter_context(plant):
                    its = self._reference_path[wrong]
                    if its in expected:
                        return None
                    expected[its] = mistake.causes
                    files |= {its: mistake.files} if mistake.files else {}
            report = self._compare(ran.case)
        errors = zip(_at_the_output(report), ran.errors, strict=True)
        if report.verdict != "FAIL" and all(error <= 2 * own for error, own in errors):
            return None
        trial = self._trial(tuple(one.name for one, _ in drawn), ran.case, expected, report)
        inlined = report.coverage.inlined
        own = [_shown(_answerable(path, inlined), x, report) for path, x in files.items()]
        return replace(trial, lines=all(own) if own else None)

    @one_at_a_time
    def _compare(self, case: Case) -> Report:
        """Report of a case, as of `parity.run_pair`; R is measured only where it decides."""
        options = Options.of(self._pair, rungs=())
        plain = Case(case.name, case.args, torch=case.torch, nnx=case.nnx, kwargs=case.kwargs)
        live, port = RunningReference(self._reference), RunningPort(self._port)
        comparison = Comparison(case.name, live, port, options, {}, {})
        return run_cases(comparison, [plain], Progress(), Usage())

    def _trial(
        self,
        names: tuple[str, ...],
        case: Case,
        expected: Mapping[str, tuple[str, ...]],
        report: Report,
    ) -> Trial:
        expected = _charged(expected, report.coverage.inlined)
        found = {fault.path: fault.cause for fault in report.faults if not fault.parting}
        evidence = "; ".join(fault.evidence for fault in report.faults)
        return Trial(names, self._seed, case.name, expected, found, report.verdict, evidence)


def _shown(path: str, files: Sequence[str], report: Report) -> bool:
    """Return true if a fault of the module shows a line of one of these files."""
    lines = [fault.lines for fault in report.faults if fault.path == path and fault.lines]
    shown = {Path(line.file).resolve() for one in lines for line in one.port}
    return not shown.isdisjoint(Path(file).resolve() for file in files)


def _charged(
    expected: Mapping[str, tuple[str, ...]], inlined: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the modules that answer for the mistakes: of one inlined into its parent, the parent.

    Two mistakes in one module's code are no single change, and may be explained by none.
    """
    charged: dict[str, tuple[str, ...]] = {}
    for path, causes in expected.items():
        path = _answerable(path, inlined)
        both = (*charged[path], *causes, "glue", "unknown") if path in charged else causes
        charged[path] = both
    return charged


def _answerable(path: str, inlined: Mapping[str, str]) -> str:
    while path in inlined:
        path = path.rpartition(".")[0]
    return path


def _sites(mistake: Mistake, ran: _Ran) -> Sequence[str]:
    return mistake.sites(ran.modules) if fnmatchcase(ran.case.name, mistake.cases) else ()


def _at_the_output(report: Report) -> tuple[float, ...]:
    """Return the free-running errors of what the root returned."""
    return tuple(row.metrics.mae for row in report.rows if row.parent == -1 and row.metrics)
