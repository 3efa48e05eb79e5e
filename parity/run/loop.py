"""All cases of a comparison, one after another, and the report of them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from parity.core.pair import Case, Pair, PairOptions
from parity.core.tensors import tied
from parity.host import memory
from parity.host.progress import Progress
from parity.report import Report
from parity.run.assemble import Comparison, assembled
from parity.run.case import run_case
from parity.run.records import Outcome


class Usage:
    """Time and memory since it was made."""

    def __init__(self) -> None:
        self._start, self._before = time.monotonic(), memory.resident_memory()

    def facts(self) -> dict[str, Any]:
        """Seconds, and peaks of memory in GiB."""
        peak = memory.peak_memory()
        return {
            "seconds": round(time.monotonic() - self._start, 1),
            "peak_memory_gib": memory.gib(peak),
            "peak_memory_above_start_gib": memory.gib(peak - self._before),
        }


def run_cases(
    comparison: Comparison,
    cases: Iterable[Case],
    progress: Progress,
    usage: Usage,
    *,
    finish: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    gaps: Callable[[Sequence[Case]], Sequence[str]] = lambda cases: (),
) -> Report:
    """Report of all cases.

    `finish` completes an outcome, and `gaps` says what the inputs of the cases leave out.
    """
    reference, port, options = comparison.reference, comparison.port, comparison.options
    options = replace(options, tied=tied(reference.tensors()))
    progress.stage("comparing the weights")
    pairing = port.pair(reference, options)
    outcomes: list[Outcome] = []
    outputs: dict[str, Mapping[str, Any]] = {}
    done: list[Case] = []
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        if case.returned_from is not None:
            case = replace(case, returned_from=_always(case.returned_from(outputs)))
        with reference.seeded():
            outcome = run_case(case, reference, port, options, pairing.weight_map, progress)
        outcome = finish(outcome)
        if outcome.extras.repro is not None:
            options = replace(options, making=None)  # of one call the arrays are kept
        outcomes.append(outcome)
        outputs[case.name] = outcome.outputs
        done.append(case)
    seen = {
        f"seen in {case.name}": outcome.extras.seen
        for case, outcome in zip(done, outcomes, strict=True)
        if outcome.extras.seen
    }
    facts = {**comparison.facts, **usage.facts(), **progress.facts(), **seen}
    comparison = replace(comparison, options=options, facts=facts)
    return assembled(comparison, outcomes, pairing, tuple(gaps(done)))


def _always(value: Any) -> Callable[..., Any]:
    return lambda outputs: value


def pair_facts(
    pair: Pair, reference: Any, cases: Sequence[Case], options: PairOptions, seed: int
) -> dict[str, Any]:
    """Inputs, size of the reference, and what the pair states of itself."""
    sources = "; ".join(dict.fromkeys(case.source for case in cases if case.source))
    given = ", ".join(f"{key} {value}" for key, value in options.items() if value is not None)
    return {
        "input": sources or f"made by the pair{given and f' ({given})'}",
        **pair.facts(options, seed),
        "parameters": sum(p.numel() for p in reference.parameters()),
        "weights_gib": memory.gib(sum(p.nbytes for p in reference.parameters())),
    }
