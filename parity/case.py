"""One case: both sides on one input, from capture to faults."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from parity import capture_nnx
from parity import layout as layout_rules
from parity.adequacy import Exercised, exercised
from parity.align import PORT_LACKS, REF_LACKS, Alignment, align, same_value
from parity.attribute import measure_inclusive
from parity.diagnose.scene import Scene
from parity.errors import InputError
from parity.exclusive import SLACK, Exclusives, measure_exclusive
from parity.explain import explained, settled
from parity.forced import Float64, Sides
from parity.globs import check_used, renamed
from parity.grade import Errors, Judgement, fail_limit, grade, judge
from parity.localise import Found, find_faults
from parity.measure import Free, Key, measure_free, read
from parity.noise import bounded
from parity.nonfinite import first_nonfinite
from parity.observer import compare_unobserved
from parity.precision import measure_emulated
from parity.progress import Progress
from parity.recorder import join
from parity.records import (
    Call,
    Case,
    Coverage,
    Diagnosis,
    Emulation,
    Exclusive,
    Fault,
    Inclusive,
    LeafMatch,
    Match,
    NonFinite,
    Row,
    Rung,
    Trace,
)
from parity.store import Store
from parity.weights import Fused, Stacked, Weight

MODES = ("free", "exclusive", "inclusive")


@dataclass(frozen=True)
class Rules:
    """What is asked of every case of a run."""

    rungs: tuple[Rung, ...] = ()
    declared: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    layout: Mapping[str, str] | None = None
    modes: tuple[str, ...] = MODES
    weights: tuple[Fused | Stacked, ...] = ()
    leaves: tuple[str, ...] = ()
    """Globs of `path#leaf` that must match an output."""
    emulate: str | None = None
    disable_jit: bool = False
    """Whether the port runs operation by operation, not in the programs that it compiles."""


@dataclass(frozen=True)
class Outcome:
    """What one case gave; `outputs` are the reference's, channel-first, by leaf.

    `uncaptured` says by case what the port returned when it was not recorded.
    """

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    outputs: Mapping[str, Any]
    exercised: Exercised
    notes: tuple[str, ...] = ()
    nonfinite: tuple[NonFinite, ...] = ()
    emulation: Emulation | None = None
    uncaptured: Mapping[str, str] = field(default_factory=dict)


class Reference(Protocol):
    """What the reference gives to the comparison of a case: one that runs, or a golden trace."""

    def arguments(
        self, case: Case, layout: Mapping[str, str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The case's arguments for the port: in its layout."""
        ...

    def record(self, case: Case, store: Store, layout: Mapping[str, str]) -> Trace:
        """The calls of the case, with their arrays in `store`."""
        ...

    def observed(self, case: Case, port: Trace) -> Trace:
        """Those of the port's calls that the reference's record can be compared with."""
        ...

    def float64(self, case: Case) -> Float64:
        """What the case does in float64."""
        ...

    def diagnose(self, found: Found, scene: Scene) -> Diagnosis:
        """Why one call of the port goes wrong, as far as the reference can tell."""
        ...

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """By class of the modules inside, the arguments that need not be given."""
        ...

    def notes(self, case: Case) -> tuple[str, ...]:
        """What a reader should know of this reference before trusting a PASS."""
        ...


def run_case(
    case: Case,
    reference: Reference,
    nnx_root: nnx.Module,
    rules: Rules,
    progress: Progress,
    nnx_args: tuple[Any, ...] | None = None,
    nnx_kwargs: dict[str, Any] | None = None,
    weights: Sequence[Weight] = (),
) -> Outcome:
    """Run both sides on one input, and measure, judge and locate.

    `weights` is the ledger of both roots, which tells of faults that weights explain.
    """
    layout, rename, declared = rules.layout or {}, rules.rename or {}, rules.declared or {}
    layout_rules.check(layout)
    nnx_module = _called(case, nnx_root, rename)
    eager = jax.disable_jit() if rules.disable_jit else nullcontext()
    with Store() as store, eager:
        given, given_kwargs = reference.arguments(case, layout)
        progress.stage("reference")
        ref = reference.record(case, store, layout)
        progress.stage("port")
        port = capture_nnx.record(
            nnx_module,
            case.nnx,
            given if nnx_args is None else nnx_args,
            given_kwargs if nnx_kwargs is None else nnx_kwargs,
            store=store,
            prefix=renamed(case.path, rename),
            depth=case.depth,
        )
        port = reference.observed(case, port)
        alignment = align(ref, port, rename=rename, declared=declared, rules=rules.weights)
        check_used("ignore", rules.leaves, _output_names(alignment), "output", fnmatchcase)
        _check_inputs(alignment, store)
        free = measure_free(alignment.matches, store, progress)
        if case.returned_from is not None and not _agree(alignment, free):
            # what was shown may be wrong too: it would count as the reference's own rounding
            return run_case(
                replace(case, returned_from=None), reference, nnx_root, rules, progress,
                nnx_args, nnx_kwargs, weights,
            )  # fmt: skip
        calls = (ref.calls, port.calls)
        exclusives: Exclusives | None = None
        inclusive: Mapping[Key, Inclusive] = {}
        sides = Sides(
            reference.float64(case),
            _joined(renamed(case.path, rename), capture_nnx.submodules(nnx_module)),
            case.nnx,
        )
        if "exclusive" in rules.modes:
            exclusives = measure_exclusive(
                alignment.matches, calls, sides, store, None if case.floor else fail_limit, progress
            )
            if "inclusive" in rules.modes:
                inclusive = measure_inclusive(
                    alignment.matches, exclusives, sides, store, fail_limit, progress
                )
        found = _rows(case, alignment, free, inclusive, exclusives, rules)
        scene = None
        if exclusives is not None and any(x.judged.blame or x.judged.doubtful for x in found):
            scene = Scene(alignment.matches, ref.calls, sides, exclusives, weights, store)
            found = settled(found, scene, reference.diagnose, progress)
        faults = find_faults(found, {m.ref.order: m.parent for m in alignment.matches})
        if scene is not None and faults:
            progress.stage("diagnosis", len(faults))
            faults = tuple(
                explained(fault, found, scene, reference.diagnose, progress) for fault in faults
            )
        unobserved = emulation = None
        root = next((match for match in alignment.matches if match.ref.parent == -1), None)
        if root is not None and case.shipped is not None:
            progress.stage("the port as it is shipped")
            passed = all(one.row.verdict == "PASS" for one in found)
            rounding = {key: error.rel_l2 for key, error in free.errors.items() if passed}
            unobserved = compare_unobserved(root, port.calls, case.shipped, sides, rounding, store)
        if root is not None and rules.emulate is not None:
            emulation = measure_emulated(
                rules.emulate, case.name, alignment.matches, port.calls, sides, free, exclusives,
                store, fail_limit, progress,
            )  # fmt: skip
        nonfinite = first_nonfinite(case.name, alignment.matches, calls, free, store)
        outputs = root_outputs(ref, store)
        notes = (*reference.notes(case), *_weak_inputs(ref.calls[-1], store))
    rows = tuple(one.row for one in found)
    done = exercised(ref.calls, reference.optional(case))
    if unobserved is not None and unobserved.note:
        notes = (*notes, f"{case.name}: {unobserved.note}")
    uncaptured = {} if unobserved is None else {case.name: unobserved.fact}
    return Outcome(
        rows, faults, alignment.coverage, outputs, done, notes, nonfinite, emulation, uncaptured
    )


def root_outputs(ref: Trace, store: Store) -> dict[str, Any]:
    """What the called module of the reference returned, channel-first, by leaf."""
    return {
        # a copy: reports keep it, and a mapping would keep the whole file
        leaf.name: np.array(read(store, leaf.buffer, undo=leaf.moved), order="C")
        for leaf in ref.calls[-1].outputs
        if leaf.buffer is not None
    }


def _output_names(alignment: Alignment) -> list[str]:
    return [f"{m.ref.path}#{leaf.ref.name}" for m in alignment.matches for leaf in m.outputs]


def _weak_inputs(root: Call, store: Store) -> tuple[str, ...]:
    """Inputs that a mistake can hide behind."""
    notes = []
    for leaf in root.inputs:
        array = store.get(leaf.buffer) if leaf.buffer else np.zeros(0)
        if array.dtype.kind not in "fc" or array.size < 2:
            continue
        wild = int(array.size - np.isfinite(array).sum())
        if wild:
            notes.append(f"input {leaf.name!r} has {wild} entries that are not finite")
        elif (array == array.flat[0]).all():
            value = f"{array.flat[0]:g}"
            notes.append(f"input {leaf.name!r} is {value} everywhere: that hides mistakes")
    return tuple(notes)


def _called(case: Case, nnx_root: nnx.Module, rename: Mapping[str, str]) -> nnx.Module:
    if not case.path:
        return nnx_root
    found = capture_nnx.submodules(nnx_root)
    path = renamed(case.path, rename)
    if path not in found:
        raise InputError(
            f"the port has no module {path!r}, counterpart of {case.path!r}; use rename="
        )
    return found[path]


def _agree(alignment: Alignment, free: Free) -> bool:
    """Whether both sides return the same but for rounding, whatever float64 would say."""
    limits = {match.ref.order: SLACK * fail_limit(match.ref.kind) for match in alignment.matches}
    return all(
        bounded(error.rel_l2, limits[order], np.dtype(np.float32)) or error.mae == 0
        for (order, _), error in free.errors.items()
    )


def _joined(prefix: str, modules: Mapping[str, Any]) -> dict[str, Any]:
    return {join(prefix, path): module for path, module in modules.items()}


def _check_inputs(alignment: Alignment, store: Store) -> None:
    """Refuse root inputs of the port that are not the reference's after layout."""
    root = next((match for match in alignment.matches if match.ref.parent == -1), None)
    if root is None:
        return
    found = {leaf.ref.name: "" if _equal(leaf, store) else leaf.problem or "other values"
             for leaf in root.inputs}  # fmt: skip
    plain = {leaf.name: leaf.value for leaf in root.port.inputs if leaf.buffer is None}
    for leaf in root.ref.inputs:
        if leaf.buffer is not None:
            problem = found.get(leaf.name, "no counterpart")
        else:
            value = plain.get(leaf.name, leaf.value)
            problem = "" if same_value(leaf.value, value) else f"{value!r} for {leaf.value!r}"
        if problem and not problem.startswith("layout"):
            raise InputError(
                f"nnx_args are not torch_args after layout: argument {leaf.name!r} has {problem}; "
                "leave nnx_args out, or say how to read the axes with layout="
            )


def _equal(leaf: LeafMatch, store: Store) -> bool:
    if leaf.problem or leaf.port is None or leaf.ref.buffer is None or leaf.port.buffer is None:
        return False
    if not leaf.undo and leaf.ref.buffer == leaf.port.buffer:
        return True
    ref, port = read(store, leaf.ref.buffer, leaf.undo), store.get(leaf.port.buffer)
    # JAX has no 64-bit types unless asked for: the values count
    return np.array_equal(ref.astype(port.dtype), port, equal_nan=port.dtype.kind in "fc")


def _rows(
    case: Case,
    alignment: Alignment,
    free: Free,
    inclusive: Mapping[Key, Inclusive],
    exclusives: Exclusives | None,
    rules: Rules,
) -> list[Found]:
    found: list[Found] = []
    by_kind = {kind: rung for rung in rules.rungs for kind in rung.kinds}
    containers = {match.parent for match in alignment.matches}
    for match in alignment.matches:
        order, kind = match.ref.order, match.ref.kind
        rung = by_kind.get(kind)
        limit = fail_limit(kind) if case.r_limit is None else case.r_limit
        handed = exclusives.handed.get(order, ()) if exclusives else ()
        handed = tuple(one for one in handed if _matters(one.error, limit))
        for leaf in match.outputs:
            if leaf.declared:  # the reason is in the coverage
                continue
            key = (order, leaf.ref.name)
            errors = Errors(
                free.errors.get(key),
                inclusive.get(key),
                exclusives.errors.get(key) if exclusives else None,
                handed,
                container=order in containers,
            )
            if errors.free is None and not leaf.problem:
                continue  # equal values that are no arrays
            judged = judge(kind, leaf, errors, rung=rung, r_limit=case.r_limit)
            row = _row(case, match, leaf, errors, free.gain(key), rung, judged)
            found.append(Found(row, judged, handed))
    return found


def _matters(error: Exclusive, limit: float) -> bool:
    return error.fails(limit) or error.unsteady or bool(error.problem)


def _row(
    case: Case,
    match: Match,
    leaf: LeafMatch,
    errors: Errors,
    gain: float,
    rung: Rung | None,
    judged: Judgement,
) -> Row:
    buffer = leaf.ref.buffer
    figures = errors.inclusive or errors.exclusive or errors.free
    return Row(
        rung=rung.name if rung else "",
        case=case.name,
        path=match.ref.path,
        nnx_path=match.port.path,
        kind=match.ref.kind,
        call=match.ref.number,
        leaf=leaf.ref.name,
        shape=buffer.shape if buffer else (),
        dtype=buffer.dtype.name if buffer else type(leaf.ref.value).__name__,
        metrics=errors.free,
        inclusive=errors.inclusive,
        exclusive=errors.exclusive,
        gain=gain,
        grade=grade(figures.mae) if figures is not None else "",
        verdict=judged.verdict,
        reason=judged.reason,
        order=match.ref.order,
        parent=match.parent,
        limited=case.r_limit is None,
        one_sided=leaf.problem in (PORT_LACKS, REF_LACKS),
    )
