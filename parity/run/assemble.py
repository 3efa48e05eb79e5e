"""The report of all cases of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.align.ignored import left_out_note
from parity.capture.constants import stated_otherwise
from parity.core.exceptions import InputError
from parity.core.globs import path_name
from parity.core.tensors import Tensor, Weight
from parity.core.verdicts import COMPILED, Coverage, Fault
from parity.extras.input_coverage import all_zero, neutral, unexercised, weak_weights
from parity.options.options import Options
from parity.options.scope import partial_note
from parity.report import Report
from parity.run.protocols import Port, Reference
from parity.run.records import Extras, Outcome, Pairing
from parity.weights.coverage import resolved, with_weights
from parity.weights.module_map import Folding

ERROR_MAPS = 12
"""How many faults of a report have an error map: each takes up to 50 kB of it."""


@dataclass(frozen=True)
class Comparison:
    """Both sides, what is asked of them, and what the report says of them."""

    name: str
    reference: Reference
    port: Port
    options: Options
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]


def assembled(
    comparison: Comparison,
    outcomes: Sequence[Outcome],
    pairing: Pairing,
    gaps: tuple[str, ...] = (),
) -> Report:
    """Report of all cases; `gaps` say what the pair knows that its inputs leave out.

    Raises:
        InputError: nothing that was chosen was called.
    """
    options = comparison.options
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    coverage = _merged_coverage([outcome.coverage for outcome in outcomes])
    weights = resolved(pairing.weight_map, coverage, rows)
    if options.only:
        if not coverage.calls:
            chosen = ", ".join(map(path_name, options.only))
            raise InputError(f"only: these inputs call no module that {chosen!r} matches")
        weights = _of_modules(weights, coverage, pairing.folding)
    skipped = [name for outcome in outcomes for name in outcome.left_out]
    partial = (
        partial_note(options.only, options.depth, coverage.modules, pairing.modules),
        left_out_note(skipped, weights),
    )
    notes = [note for outcome in outcomes for note in outcome.notes]
    used = _used(pairing, coverage)
    notes += weak_weights(all_zero(used))
    notes += stated_otherwise(pairing.stated, coverage.matched)
    extras = [outcome.extras for outcome in outcomes]
    tried = [glob for outcome in outcomes for glob in outcome.tried]
    return Report(
        name=comparison.name,
        rows=rows,
        faults=_merged_faults([fault for outcome in outcomes for fault in outcome.faults]),
        coverage=with_weights(coverage, weights, pairing.folding.port_of, tried),
        environment=comparison.environment,
        facts=_facts(comparison, extras),
        rungs=options.rungs,
        weights=weights,
        outputs=outcomes[-1].outputs,
        inputs=tuple(dict.fromkeys(notes)),
        unexercised=(
            *unexercised([outcome.exercised for outcome in outcomes]),
            *neutral(used),
            *gaps,
        ),
        emulations=tuple(one.emulation for one in extras if one.emulation),
        nonfinite=tuple(found for one in extras for found in one.nonfinite),
        partial="; ".join(filter(None, partial)),
        repro=next((one.repro for one in extras if one.repro), None),
    )


def _facts(comparison: Comparison, extras: Sequence[Extras]) -> dict[str, Any]:
    options, facts = comparison.options, dict(comparison.facts)
    if options.only:
        facts["only"] = list(options.only)
    if options.depth is not None:
        facts["depth"] = options.depth
    uncaptured = {case: fact for one in extras for case, fact in one.uncaptured.items()}
    return {**facts, "uncaptured": uncaptured} if uncaptured else facts


def _used(pairing: Pairing, coverage: Coverage) -> list[Tensor]:
    """The tensors of modules that ran."""
    ran = {*coverage.matched, *coverage.inlined}
    ran |= coverage.declared.keys() - set(coverage.idle)
    return [tensor for tensor in pairing.tensors if tensor.path in ran]


def _of_modules(
    weights: Sequence[Weight], coverage: Coverage, folding: Folding
) -> tuple[Weight, ...]:
    """The lines of the weight map that are of a module in the coverage."""
    paths = {*coverage.matched, *coverage.declared, *coverage.unmatched, *coverage.inlined}
    places = {folding.port_of[path] for path in paths if path in folding.port_of}
    return tuple(line for line in weights if line.path in (paths if line.name else places))


def _merged_faults(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """One fault per module and mistake in it: its first, with the calls over all cases."""
    merged: dict[tuple[str, int, bool], Fault] = {}
    for fault in faults:
        place = fault.path, fault.parting, fault.case.endswith(COMPILED)
        first = merged.get(place)
        if first is not None:
            merged[place] = replace(first, calls=first.calls + fault.calls)
        elif len(merged) < ERROR_MAPS:
            merged[place] = fault
        else:
            merged[place] = replace(fault, error_map=None)
    return tuple(merged.values())


def _merged_coverage(parts: Sequence[Coverage]) -> Coverage:
    """Coverage of several cases: a module is matched if one case matched it.

    The number of modules is that of the widest case.
    """
    widest = max(parts, key=lambda part: part.modules)
    matched = {path: None for part in parts for path in part.matched}
    unmatched = {path: None for part in parts for path in part.unmatched if path not in matched}
    inlined = {path: why for part in parts for path, why in part.inlined.items()}
    declared = {path: why for part in parts for path, why in part.declared.items()}
    for path in (*matched, *unmatched, *inlined):
        declared.pop(path, None)
    idle = {path: path in part.idle for part in parts for path in part.declared}
    return replace(
        widest,
        matched=tuple(matched),
        unmatched=tuple(unmatched),
        declared=declared,
        idle=tuple(path for path in declared if idle[path]),
        inlined={path: why for path, why in inlined.items() if path not in matched},
        calls=sum(part.calls for part in parts),
        matched_calls=sum(part.matched_calls for part in parts),
        unmatched_calls=tuple(text for part in parts for text in part.unmatched_calls),
        remarks=tuple(dict.fromkeys(text for part in parts for text in part.remarks)),
    )
