"""One case: both sides on one input, from capture to faults."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from parity.align.calls import Alignment, align, match_inputs, same_value
from parity.align.ignored import left_out
from parity.align.taps import of_modules
from parity.capture import layout as layout_rules
from parity.capture import nnx as capture_nnx
from parity.capture import taps
from parity.capture.functional import Functional
from parity.capture.recorder import join
from parity.core.arrays import read
from parity.core.calls import Call, LeafMatch, Match, Trace
from parity.core.exceptions import InputError
from parity.core.globs import Pending, captured, check_used, renamed
from parity.core.measurements import Emulation, NonFinite
from parity.core.pair import Case
from parity.core.problems import ProblemKind, not_measured
from parity.core.repro import Repro
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Diagnosis, Fault, Row
from parity.diagnose.scene import Scene
from parity.extras.compiled_run import compare_unobserved
from parity.extras.emulated_error import measure_emulated
from parity.extras.input_coverage import Exercised, exercised
from parity.extras.nonfinite import first_nonfinite
from parity.force.common import Float64, Sides
from parity.gradients.measure import measure_gradients
from parity.gradients.protocol import Backward
from parity.gradients.rows import judge_gradients
from parity.host.progress import Progress
from parity.judge.faults import Found
from parity.judge.verdict import fail_limit
from parity.measure.exclusive import SLACK
from parity.measure.free import Free, measure_free
from parity.measure.noise import bounded
from parity.options.options import Rules
from parity.options.scope import DEEPER, Choice, choose, opened, with_deeper
from parity.run.part import Part, faults_of, judge_part, split
from parity.run.repro import take

NO_TAPS = (
    "the port is a function without taps, seen as a whole: name what the reference's modules"
    " return, as in parity.tap('layers.0.attn', y)"
)


NO_ROOT = "gradients were not measured: the root itself has no counterpart in the port"

GRADIENTS_ALONE = (
    "gradients alone were compared, and what the port returns may be wrong: compare outputs too"
)


@dataclass(frozen=True)
class Outcome:
    """What one case gave; `outputs` are the reference's, channel-first, by leaf. `seen` is what the
    case says of what both sides returned.

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
    repro: Repro | None = None
    seen: str = ""
    left_out: tuple[str, ...] = ()
    """What both sides have and a declaration names."""


class Reference(Protocol):
    """What the reference gives to the comparison of a case: one that runs, or a golden trace."""

    def arguments(
        self, case: Case, layout: Mapping[str, str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The case's arguments for the port: in its layout."""
        ...

    def paths(self) -> Collection[str]:
        """All modules of the root."""
        ...

    def record(
        self,
        case: Case,
        store: Store,
        layout: Mapping[str, str],
        inside: Collection[str] | None,
    ) -> Trace:
        """The calls of the case, with their arrays in `store`.

        `inside` are the paths of the submodules to record; `None` stands for all.
        """
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
    backward: Backward | None = None,
) -> Outcome:
    """Run both sides on one input, and measure, judge and locate.

    `weights` is the weight map of both roots, which explains faults. `backward` is
    the reference's backward pass, where gradients are to be compared too.
    """
    layout, rename, declared = rules.layout or {}, rules.rename or {}, rules.declared or {}
    layout_rules.check(layout)
    nnx_module = called_module(case, nnx_root, rename)
    if rules.only and isinstance(nnx_module, Functional):
        raise InputError("only: a port that is a function runs as a whole; leave it out")
    choice = choice_of(case, reference.paths(), nnx_root, rules)
    eager = jax.disable_jit() if rules.disable_jit else nullcontext()
    with Store() as store, eager:
        given, given_kwargs = reference.arguments(case, layout)
        progress.stage("reference")
        ref = reference.record(case, store, layout, choice.theirs)
        called, port = ref.calls[-1], Trace((), {})
        _check_pending(rules.pending, ref, port, early=True)
        done = exercised(ref.calls, reference.optional(case))
        if choice.whole or len(ref.calls) > 1:
            progress.stage("port")
            with layout_rules.hint(called) if nnx_args is None else nullcontext():
                port = _recorded(
                    nnx_module,
                    case.nnx,
                    given if nnx_args is None else nnx_args,
                    given_kwargs if nnx_kwargs is None else nnx_kwargs,
                    ref=ref,
                    rename=rename,
                    store=store,
                    prefix=renamed(case.path, rename),
                    inside=choice.ours,
                )
            check_inputs(called, port.calls[-1], store)
        _check_pending(rules.pending, ref, port, early=False)
        if not choice.whole:
            ref, port = opened(ref), opened(port)
        deeper = {glob: DEEPER for path in choice.deeper for name in [renamed(path, rename)]
                  for glob in (name, f"{name}.*")}  # fmt: skip
        alignment = align(
            ref, port, rename=rename, declared={**declared, **deeper}, rules=rules.weights,
            tied=rules.tied,
        )  # fmt: skip
        if not rules.only:
            check_used("ignore", rules.leaves, _output_names(alignment), "output", fnmatchcase)
        free = measure_free(alignment.matches, store, progress)
        if case.returned_from is not None and not _agree(alignment, free):
            # what was shown may be wrong too: it would count as the reference's own rounding
            return run_case(
                replace(case, returned_from=None), reference, nnx_root, rules, progress,
                nnx_args, nnx_kwargs, weights, backward,
            )  # fmt: skip
        calls = (ref.calls, port.calls)
        sides = Sides(
            reference.float64(case),
            _joined(renamed(case.path, rename), capture_nnx.submodules(nnx_module))
            | dict(port.linen),
            case.nnx,
        )
        parts: Sequence[Part] = (Part(alignment.matches, calls),) if "free" in rules.modes else ()
        if not choice.whole:
            parts = split(alignment.matches, calls)
            own = reference.float64(replace(case, torch="__call__"))
            sides = replace(sides, reference=own, nnx_method="__call__")
        judged = [
            judge_part(
                case, part, sides, free, weights, store, reference.diagnose, progress,
                modes=rules.modes, rungs=rules.rungs,
            )
            for part in parts
        ]  # fmt: skip
        faults = faults_of(judged, reference.diagnose, progress)
        shown = None
        if rules.repro and faults:
            shown = take(faults[0], judged, nnx_root, sides, store)
        found = [one for part in judged for one in part.found]
        rows = [one.row for one in found]
        smooth = of_modules(alignment.matches, ref.calls)
        unmeasured = ""
        if backward is not None and not (smooth and smooth[-1].ref.parent == -1):
            unmeasured = NO_ROOT
        elif backward is not None:
            measured = measure_gradients(smooth, calls, sides, backward, weights, store, progress)
            more, wrong = judge_gradients(case, measured, {fault.path for fault in faults})
            rows, faults = [*rows, *more], (*faults, *wrong)
        unobserved = emulation = None
        root = next((match for match in alignment.matches if match.ref.parent == -1), None)
        if root is not None and parts and choice.whole and case.shipped is not None:
            progress.stage("the port as it is shipped")
            passed = all(one.row.verdict == "PASS" for one in found)
            rounding = {key: error.rel_l2 for key, error in free.errors.items() if passed}
            unobserved = compare_unobserved(root, port.calls, case.shipped, sides, rounding, store)
        if root is not None and rules.emulate is not None:
            emulation = measure_emulated(
                rules.emulate, case.name, alignment.matches, port.calls, sides, free,
                judged[-1].exclusives if judged else None, store, fail_limit, progress,
            )  # fmt: skip
        nonfinite: tuple[NonFinite, ...] = ()
        if ref.calls and port.calls:
            nonfinite = first_nonfinite(case.name, alignment.matches, calls, free, store)
        outputs = root_outputs(called, store)
        seen = ""
        if case.seen is not None and root is not None:
            seen = case.seen(case.args, outputs, root_outputs(port.calls[-1], store))
        notes = (*reference.notes(case), *weak_inputs(called, store))
        notes += tuple(f"{case.name}: {note}" for note in alignment.notes)
        notes += tuple(f"{case.name}: {note}" for note in [unmeasured] if note)
        if not parts and (root is None or not _returns_the_same(root, free)):
            notes += (f"{case.name}: {GRADIENTS_ALONE}",)
        if isinstance(nnx_module, Functional) and not any(call.tapped for call in port.calls):
            notes += (f"{case.name}: {NO_TAPS}",)
    coverage = with_deeper(alignment.coverage, choice.deeper)
    if unobserved is not None and unobserved.note:
        notes = (*notes, f"{case.name}: {unobserved.note}")
    uncaptured = {} if unobserved is None else {case.name: unobserved.fact}
    return Outcome(
        tuple(rows),
        faults,
        coverage,
        outputs,
        done,
        notes,
        nonfinite,
        emulation,
        uncaptured,
        shown,
        seen,
        left_out(alignment.matches),
    )


def _check_pending(pending: Sequence[Pending], ref: Trace, port: Trace, *, early: bool) -> None:
    """Refuse globs that match no tap: of what concerns the reference alone before the port runs."""
    found = [call.path for call in (*ref.calls, *port.calls) if call.tapped]
    for one in pending:
        if early == (one.option != "ignore"):
            one.check(found)


def _recorded(
    module: nnx.Module,
    method: Any,
    args: Any,
    kwargs: Any,
    *,
    ref: Trace,
    rename: Mapping[str, str],
    **settings: Any,
) -> Trace:
    """The port's calls; operation by operation if it has taps that its programs may hide."""
    compiled: Trace | None = None
    if not isinstance(module, Functional):
        compiled = capture_nnx.record(module, method, args, kwargs, **settings)
        if not compiled.untapped and not _may_hide_taps(ref, compiled, rename):
            return compiled
    with jax.disable_jit():
        port = capture_nnx.record(module, method, args, kwargs, **settings)
    if compiled is None or any(call.tapped for call in port.calls):
        return port
    return replace(compiled, untapped=port.untapped)


def _may_hide_taps(ref: Trace, port: Trace, rename: Mapping[str, str]) -> bool:
    """Whether what was compiled before the run may have a tap where the port makes no call."""
    made = {call.path for call in port.calls}
    lacking = {f".{renamed(call.path, rename)}" for call in ref.calls if call.path} - {
        f".{path}" for path in made
    }
    return any(captured(f"*.{name}", path) for name in taps.called() for path in lacking)


def root_outputs(called: Call, store: Store) -> dict[str, Any]:
    """What the called module of a side returned, in the layout of that side, by leaf."""
    return {
        # a copy: reports keep it, and a mapping would keep the whole file
        leaf.name: np.array(read(store, leaf.buffer, undo=leaf.moved), order="C")
        for leaf in called.outputs
        if leaf.buffer is not None
    }


def choice_of(case: Case, theirs: Collection[str], nnx_root: nnx.Module, rules: Rules) -> Choice:
    """What is recorded of a case."""
    choice = choose(
        case.path, theirs, capture_nnx.submodules(nnx_root),
        only=rules.only, depth=rules.depth, rename=rules.rename or {},
    )  # fmt: skip
    return replace(choice, theirs=(), ours=(), deeper=()) if case.depth == 0 else choice


def _output_names(alignment: Alignment) -> list[str]:
    return [f"{m.ref.path}#{leaf.ref.name}" for m in alignment.matches for leaf in m.outputs]


def weak_inputs(root: Call, store: Store) -> tuple[str, ...]:
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


def called_module(case: Case, nnx_root: nnx.Module, rename: Mapping[str, str]) -> nnx.Module:
    """The port's module that the case calls."""
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


def _returns_the_same(root: Match, free: Free) -> bool:
    """Whether what the root returns is surely the same but for rounding."""
    limit, plain = SLACK * fail_limit(root.ref.kind), np.dtype(np.float32)
    errors = [free.errors.get((root.ref.order, leaf.ref.name)) for leaf in root.outputs
              if leaf.ref.buffer is not None]  # fmt: skip
    return all(
        one is not None and (one.mae == 0 or bounded(one.rel_l2, limit, plain)) for one in errors
    )


def _joined(prefix: str, modules: Mapping[str, Any]) -> dict[str, Any]:
    return {join(prefix, path): module for path, module in modules.items()}


def check_inputs(theirs: Call, ours: Call, store: Store) -> None:
    """Refuse arguments of the port that are not the reference's after layout."""
    other, lacking = (not_measured(text) for text in ("other values", "no counterpart"))
    found = {leaf.ref.name: None if _equal(leaf, store) else leaf.problem or other
             for leaf in match_inputs(theirs.inputs, ours.inputs)}  # fmt: skip
    plain = {leaf.name: leaf.value for leaf in ours.inputs if leaf.buffer is None}
    for leaf in theirs.inputs:
        if leaf.buffer is not None:
            problem = found.get(leaf.name, lacking)
        else:
            value = plain.get(leaf.name, leaf.value)
            text = f"{value!r} for {leaf.value!r}"
            problem = None if same_value(leaf.value, value) else not_measured(text)
        if problem is not None and problem.kind is not ProblemKind.LAYOUT:
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
