"""From the cases of a comparison to one report; and what holds for all of them: the weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import nnx

from parity.align.ignored import left_out_note
from parity.capture import nnx as capture_nnx
from parity.core.calls import ModuleInfo
from parity.core.exceptions import InputError
from parity.core.globs import renamed
from parity.core.tensors import Tensor, Weight
from parity.core.verdicts import Coverage, Fault
from parity.extras.input_coverage import all_zero, unexercised, weak_weights
from parity.host import memory
from parity.options.options import Rules
from parity.options.scope import partial_note
from parity.report import Report
from parity.run.case import Outcome
from parity.weights.coverage import settled, with_weights
from parity.weights.module_map import Folding, fold
from parity.weights.weight_map import make_weight_map

ERROR_MAPS = 12
"""How many faults of a report have a error_map: each takes up to 50 kB of it."""


@dataclass(frozen=True)
class Paired:
    """Which modules of the two models correspond, and which tensors hold the same values.

    `modules` is how many the reference has, `zeros` are its parameters that hold nothing else.
    """

    modules: int
    folding: Folding
    weight_map: tuple[Weight, ...]
    zeros: tuple[str, ...] = ()


def paired(
    modules: Mapping[str, ModuleInfo],
    tensors: Sequence[Tensor],
    port: nnx.Module,
    rules: Rules,
) -> Paired:
    """Pair the reference's modules and tensors with those of the port."""
    found = capture_nnx.submodules(port)
    ours = {path: capture_nnx.module_info(path, child) for path, child in found.items()}
    names = {path: renamed(path, rules.rename or {}) for path in modules}
    folding = fold(modules, ours, names, rules.tied)
    weight_map = make_weight_map(
        tensors,
        capture_nnx.named_tensors(port),
        modules=found,
        folding=folding,
        rename=rules.rename,
        rules=rules.weights,
        declared=rules.declared,
    )
    return Paired(len(modules), folding, weight_map, all_zero(tensors))


class Programs:
    """What JAX has compiled: in a process of its own it is dropped once it will hardly run again.

    It holds memory until the process ends.
    """

    def __init__(self, own_process: bool) -> None:
        self._own_process = own_process
        self._last_shapes: list[tuple[int, ...]] = []

    def before(self, path: str, shapes: list[tuple[int, ...]]) -> None:
        """The module at `path` is about to be called: the root, with other shapes than last?"""
        if self._own_process and not path and shapes != self._last_shapes:
            jax.clear_caches()
            memory.give_back()
            self._last_shapes = shapes


def assembled(
    name: str,
    outcomes: Sequence[Outcome],
    pairs: Paired,
    rules: Rules,
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    gaps: tuple[str, ...] = (),
) -> Report:
    """The report of all cases; `gaps` are what the pair says that its inputs leave out.

    Raises:
        InputError: nothing that was chosen was called.
    """
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    coverage = _merged_coverage([outcome.coverage for outcome in outcomes])
    weights = settled(pairs.weight_map, coverage, rows)
    if rules.only:
        if not coverage.calls:
            chosen = ", ".join(rules.only)
            raise InputError(f"only: these inputs call no module that {chosen!r} matches")
        weights = _of_modules(weights, coverage, pairs.folding)
        facts = {**facts, "only": list(rules.only)}
    if rules.depth is not None:
        facts = {**facts, "depth": rules.depth}
    skipped = [name for outcome in outcomes for name in outcome.left_out]
    partial = (
        partial_note(rules.only, rules.depth, coverage.modules, pairs.modules),
        left_out_note(skipped, weights),
    )
    notes = [note for outcome in outcomes for note in outcome.notes]
    seen = {*coverage.matched, *coverage.dissolved}
    seen |= coverage.declared.keys() - set(coverage.idle)
    zeros = [name for name in pairs.zeros if name.rpartition(".")[0] in seen]
    uncaptured = {case: fact for outcome in outcomes for case, fact in outcome.uncaptured.items()}
    return Report(
        name=name,
        rows=rows,
        faults=_merged_faults([fault for outcome in outcomes for fault in outcome.faults]),
        coverage=with_weights(coverage, weights, pairs.folding.partners),
        environment=environment,
        facts={**facts, **({"uncaptured": uncaptured} if uncaptured else {})},
        rungs=rules.rungs,
        weights=weights,
        outputs=outcomes[-1].outputs,
        inputs=tuple(dict.fromkeys([*notes, *weak_weights(zeros)])),
        unexercised=(*unexercised([outcome.exercised for outcome in outcomes]), *gaps),
        emulations=tuple(outcome.emulation for outcome in outcomes if outcome.emulation),
        nonfinite=tuple(one for outcome in outcomes for one in outcome.nonfinite),
        partial="; ".join(filter(None, partial)),
        repro=next((outcome.repro for outcome in outcomes if outcome.repro), None),
    )


def _of_modules(
    weights: Sequence[Weight], coverage: Coverage, folding: Folding
) -> tuple[Weight, ...]:
    """The lines of the weight map that are of a module in the coverage."""
    paths = {*coverage.matched, *coverage.declared, *coverage.unmatched, *coverage.dissolved}
    places = {folding.partners[path] for path in paths if path in folding.partners}
    return tuple(line for line in weights if line.path in (paths if line.name else places))


def _merged_faults(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """One fault per module: its first, with the number of calls over all cases."""
    merged: dict[str, Fault] = {}
    for fault in faults:
        first = merged.get(fault.path)
        if first is not None:
            merged[fault.path] = replace(first, calls=first.calls + fault.calls)
        elif len(merged) < ERROR_MAPS:
            merged[fault.path] = fault
        else:
            merged[fault.path] = replace(fault, error_map=None)
    return tuple(merged.values())


def _merged_coverage(parts: Sequence[Coverage]) -> Coverage:
    """Coverage of several cases: a module is matched if one case matched it.

    The number of modules is that of the widest case.
    """
    widest = max(parts, key=lambda part: part.modules)
    matched = {path: None for part in parts for path in part.matched}
    unmatched = {path: None for part in parts for path in part.unmatched if path not in matched}
    dissolved = {path: why for part in parts for path, why in part.dissolved.items()}
    declared = {path: why for part in parts for path, why in part.declared.items()}
    for path in (*matched, *unmatched, *dissolved):
        declared.pop(path, None)
    idle = {path: path in part.idle for part in parts for path in part.declared}
    return replace(
        widest,
        matched=tuple(matched),
        unmatched=tuple(unmatched),
        declared=declared,
        idle=tuple(path for path in declared if idle[path]),
        dissolved={path: why for path, why in dissolved.items() if path not in matched},
        calls=sum(part.calls for part in parts),
        matched_calls=sum(part.matched_calls for part in parts),
        unmatched_calls=tuple(text for part in parts for text in part.unmatched_calls),
    )
