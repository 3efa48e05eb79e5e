"""The harness tried on known mistakes: is each found, where it is, and for what it is?

A round draws a module for every mistake from the round's seed, makes the mistake there, and hands
the two models and the inputs to the public `compare`, nothing else. It also compares the port
without any mistake, and with three at once.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from parity.align import renamed
from parity.capture_nnx import submodules
from parity.errors import InputError
from parity.inputs import load_clip
from parity.mistakes import GENERAL
from parity.pipeline import compare
from parity.progress import Progress
from parity.records import Case, Mistake, Pair
from parity.report import Report

FRAMES, SIZE = 17, (16, 16)
"""Of the clip: long enough for a second chunk."""

TRIPLES = 2
"""How many times three mistakes are made at once in each round."""

PLACE, CAUSE = 0.97, 0.9
"""Parts of the mistakes that must be found where they are, and for what they are."""


@dataclass(frozen=True)
class Trial:
    """What `compare` said of the port with some mistakes in it, or with none.

    `expected` maps the modules that are wrong to the causes that name it rightly, `found` those
    that were named to the cause given.
    """

    mistakes: tuple[str, ...]
    seed: int
    case: str
    expected: Mapping[str, tuple[str, ...]]
    found: Mapping[str, str]
    verdict: str
    evidence: str = ""

    @property
    def killed(self) -> bool:
        """Whether the comparison failed."""
        return self.verdict == "FAIL"

    @property
    def place(self) -> bool:
        """Whether the modules named are those that are wrong, all of them and no other."""
        return set(self.found) == set(self.expected)

    @property
    def cause(self) -> bool:
        """Whether they are named for what is wrong with them."""
        return self.place and all(self.found[path] in words for path, words in self.expected.items())


@dataclass(frozen=True)
class SelfTest:
    """All trials: of one mistake each, of three at once, of none."""

    singles: tuple[Trial, ...]
    triples: tuple[Trial, ...]
    healthy: tuple[Trial, ...]

    def __bool__(self) -> bool:
        """Whether the harness did what it is for."""
        return (
            bool(self.singles)
            and share(trial.place for trial in self.singles) >= PLACE
            and share(trial.cause for trial in self.singles) >= CAUSE
            and all(trial.place for trial in self.triples)
            and all(trial.verdict in ("PASS", "WARN") for trial in self.healthy)
        )


def share(answers: Iterator[bool] | Sequence[bool]) -> float:
    """The part that is true; NaN of none."""
    values = list(answers)
    return sum(values) / len(values) if values else float("nan")


def selftest(
    pair: Pair,
    *,
    config: str | None = "small",
    rounds: int = 1,
    seed: int = 0,
    only: str = "*",
    progress: Progress | None = None,
) -> SelfTest:
    """Try the harness on the port of `pair` with every known mistake whose name `only` matches.

    Raises:
        InputError: no mistake has that name.
    """
    progress = progress or Progress()
    mistakes = [one for one in (*GENERAL, *pair.mistakes) if fnmatchcase(one.name, only)]
    if not mistakes:
        names = "\n  ".join(one.name for one in (*GENERAL, *pair.mistakes))
        raise InputError(f"no mistake is named {only!r}; there are\n  {names}")
    singles: list[Trial] = []
    triples: list[Trial] = []
    healthy: list[Trial] = []
    for number in range(seed, seed + rounds):
        progress.title(f"round {number}")
        bench = _Bench(pair, config, number)
        progress.stage("mistakes", len(mistakes) + TRIPLES)
        healthy += bench.healthy
        for mistake in mistakes:
            singles += bench.try_alone(mistake)
            progress.advance()
        for _ in range(TRIPLES if len(mistakes) >= 3 else 0):
            triples.append(bench.try_three(mistakes))
            progress.advance()
    return SelfTest(tuple(singles), tuple(triples), tuple(healthy))


class _Bench:
    """Both models of one seed, and which modules of the port run in which case."""

    def __init__(self, pair: Pair, config: str | None, seed: int) -> None:
        self._pair, self._seed, self._draw = pair, seed, random.Random(seed)
        self._reference = pair.make_torch(None, config, seed)
        self._port = pair.make_nnx(None, config, self._reference)
        self._modules = submodules(self._port)
        paths = [path for path, _ in self._reference.named_modules()]
        self._reference_path = {renamed(path, pair.rename): path for path in paths}
        self._cases: list[tuple[Case, frozenset[str]]] = []
        self.healthy: list[Trial] = []
        outputs: dict[str, Mapping[str, Any]] = {}
        clip = load_clip(None, FRAMES, SIZE, seed)
        for case in pair.cases(self._reference, clip, seed):
            if case.path or case.depth is not None:
                continue  # modules by themselves and the whole without its parts
            if case.args_from is not None:
                case = replace(case, args=case.args_from(outputs))
            report = self._compare(case)
            outputs[case.name] = report.outputs
            ran = frozenset(row.nnx_path for row in report.rows)
            self._cases.append((case, ran))
            self.healthy.append(self._trial((), case, {}, report))

    def try_alone(self, mistake: Mistake) -> list[Trial]:
        """One trial, none if the port has no module that the mistake can be made in."""
        sites = self._sites(mistake)
        if not sites:
            return []
        path, case = self._draw.choice(sites)
        return [self._try([(mistake, path)], case)]

    def try_three(self, mistakes: Sequence[Mistake]) -> Trial:
        """One trial of three mistakes in modules of their own."""
        while True:
            case, ran = self._draw.choice(self._cases)
            drawn = []
            for mistake in self._draw.sample(list(mistakes), 3):
                sites = [path for path, where in self._sites(mistake) if where is case]
                drawn += [(mistake, self._draw.choice(sites))] if sites else []
            if len(drawn) == 3 and len({path for _, path in drawn}) == 3:
                trial = self._try(drawn, case)
                if sum(len(words) for words in trial.expected.values()) >= 3:
                    return trial

    def _sites(self, mistake: Mistake) -> list[tuple[str, Case]]:
        found = []
        for path in mistake.sites(self._modules):
            fits = (case for case, ran in self._cases
                    if path in ran and fnmatchcase(case.name, mistake.cases))  # fmt: skip
            found += [(path, case) for case in list(fits)[:1]]
        return found

    def _try(self, drawn: Sequence[tuple[Mistake, str]], case: Case) -> Trial:
        expected: dict[str, tuple[str, ...]] = {}
        with ExitStack() as planted:
            for mistake, path in drawn:
                for wrong in planted.enter_context(mistake.plant(self._modules, path, self._draw)):
                    expected[self._reference_path[wrong]] = mistake.causes
            report = self._compare(case)
        return self._trial(tuple(mistake.name for mistake, _ in drawn), case, expected, report)

    def _compare(self, case: Case) -> Report:
        return compare(
            self._reference,
            self._port,
            case.args,
            torch_kwargs=case.kwargs,
            method={"torch": case.torch, "nnx": case.nnx},
            layout=self._pair.layout,
            rename=self._pair.rename,
            ignore=tuple(self._pair.declared),
            noise_floor=False,
        )

    def _trial(
        self,
        names: tuple[str, ...],
        case: Case,
        expected: Mapping[str, tuple[str, ...]],
        report: Report,
    ) -> Trial:
        found = {fault.path: fault.cause for fault in report.faults}
        evidence = "; ".join(fault.evidence for fault in report.faults)
        return Trial(names, self._seed, case.name, expected, found, report.verdict, evidence)
