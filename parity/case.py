"""One case: both sides on one input, from capture to faults."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

from parity import capture_nnx, capture_torch
from parity import layout as layout_rules
from parity.adequacy import Exercised, exercised
from parity.align import PORT_LACKS, REF_LACKS, Alignment, align, same_value
from parity.attribute import measure_inclusive
from parity.diagnose import Scene
from parity.errors import InputError
from parity.exclusive import SLACK, Exclusives, measure_exclusive
from parity.explain import explained, settled
from parity.forced import Sides
from parity.globs import check_used, renamed
from parity.grade import Errors, Judgement, fail_limit, grade, judge
from parity.localise import Found, find_faults
from parity.measure import Free, Key, measure_free, read
from parity.noise import bounded
from parity.nonfinite import first_nonfinite
from parity.observer import compare_unobserved
from parity.precision import measure_emulated
from parity.progress import Progress
from parity.recorder import bind, join
from parity.records import (
    Call,
    Case,
    Coverage,
    Emulation,
    Exclusive,
    Fault,
    Inclusive,
    LeafMatch,
    Match,
    NonFinite,
    Row,
    Rung,
)
from parity.store import Store
from parity.tree import flatten, mapped, rebuild
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


def run_case(
    case: Case,
    torch_root: torch.nn.Module,
    nnx_root: nnx.Module,
    rules: Rules,
    progress: Progress,
    nnx_args: tuple[Any, ...] | None = None,
    nnx_kwargs: dict[str, Any] | None = None,
    weights: Sequence[Weight] = (),
    before: Mapping[str, Mapping[str, Any]] | None = None,
) -> Outcome:
    """Run both sides on one input, and measure, judge and locate.

    `weights` is the ledger of both roots, which tells of faults that weights explain; `before` what
    the reference returned in the cases before.
    """
    layout, rename, declared = rules.layout or {}, rules.rename or {}, rules.declared or {}
    layout_rules.check(layout)
    torch_module, nnx_module = _called(case, torch_root, nnx_root, rename)
    eager = jax.disable_jit() if rules.disable_jit else nullcontext()
    with Store() as store, eager:
        given, given_kwargs = _port_arguments(case, torch_module, layout)
        progress.stage("reference")
        method = case.torch
        if case.returned_from is not None:
            method = _returning(case.returned_from(before or {}), torch_module, method)
        ref = capture_torch.record(
            torch_module, method, case.args, case.kwargs,
            store=store, layout=layout, prefix=case.path, depth=case.depth,
        )  # fmt: skip
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
        alignment = align(ref, port, rename=rename, declared=declared, rules=rules.weights)
        check_used("ignore", rules.leaves, _output_names(alignment), "output", fnmatchcase)
        _check_inputs(alignment, store)
        free = measure_free(alignment.matches, store, progress)
        if case.returned_from is not None and not _agree(alignment, free):
            # what was shown may be wrong too: it would count as the reference's own rounding
            return run_case(
                replace(case, returned_from=None), torch_root, nnx_root, rules, progress,
                nnx_args, nnx_kwargs, weights,
            )  # fmt: skip
        calls = (ref.calls, port.calls)
        exclusives: Exclusives | None = None
        inclusive: Mapping[Key, Inclusive] = {}
        sides = Sides(
            _joined(case.path, dict(torch_module.named_modules())),
            _joined(renamed(case.path, rename), capture_nnx.submodules(nnx_module)),
            case.torch,
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
            found = settled(found, scene, progress)
        faults = find_faults(found, {m.ref.order: m.parent for m in alignment.matches})
        if scene is not None and faults:
            progress.stage("diagnosis", len(faults))
            faults = tuple(explained(fault, found, scene, progress) for fault in faults)
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
        outputs = {
            # a copy: reports keep it, and a mapping would keep the whole file
            leaf.name: np.array(read(store, leaf.buffer, undo=leaf.moved), order="C")
            for leaf in ref.calls[-1].outputs
            if leaf.buffer is not None
        }
        notes = (*_in_training(torch_module), *_weak_inputs(ref.calls[-1], store))
    rows = tuple(one.row for one in found)
    done = exercised(ref.calls, capture_torch.optional_arguments(torch_module))
    if unobserved is not None and unobserved.note:
        notes = (*notes, f"{case.name}: {unobserved.note}")
    uncaptured = {} if unobserved is None else {case.name: unobserved.fact}
    return Outcome(
        rows, faults, alignment.coverage, outputs, done, notes, nonfinite, emulation, uncaptured
    )


def _output_names(alignment: Alignment) -> list[str]:
    return [f"{m.ref.path}#{leaf.ref.name}" for m in alignment.matches for leaf in m.outputs]


def _in_training(module: torch.nn.Module) -> tuple[str, ...]:
    """Modules of the reference that do something else in train mode, and are in it."""
    paths = [
        path or "<root>"
        for path, one in module.named_modules()
        if one.training and (getattr(one, "p", 0) or getattr(one, "track_running_stats", False))
    ]
    found = ", ".join(paths[:5])
    return (f"the reference is in train mode: {found}; call .eval()",) if paths else ()


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


def _called(
    case: Case, torch_root: torch.nn.Module, nnx_root: nnx.Module, rename: Mapping[str, str]
) -> tuple[torch.nn.Module, nnx.Module]:
    if not case.path:
        return torch_root, nnx_root
    found = capture_nnx.submodules(nnx_root)
    path = renamed(case.path, rename)
    if path not in found:
        raise InputError(
            f"the port has no module {path!r}, counterpart of {case.path!r}; use rename="
        )
    return torch_root.get_submodule(case.path), found[path]


def _agree(alignment: Alignment, free: Free) -> bool:
    """Whether both sides return the same but for rounding, whatever float64 would say."""
    limits = {match.ref.order: SLACK * fail_limit(match.ref.kind) for match in alignment.matches}
    return all(
        bounded(error.rel_l2, limits[order], np.dtype(np.float32)) or error.mae == 0
        for (order, _), error in free.errors.items()
    )


def _returning(value: Any, module: torch.nn.Module, method: capture_torch.Method) -> Any:
    """A method that returns `value`, with the arguments of `method`."""
    returned = mapped(torch.from_numpy, value)
    cls = type(module)
    named = cls.forward if method == "__call__" else method
    function = getattr(cls, named) if isinstance(named, str) else named

    @functools.wraps(function)
    def known(*args: Any, **kwargs: Any) -> Any:
        return returned

    return known


def _joined(prefix: str, modules: Mapping[str, Any]) -> dict[str, Any]:
    return {join(prefix, path): module for path, module in modules.items()}


def _port_arguments(
    case: Case, module: torch.nn.Module, layout: Mapping[str, str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reference's arguments in the port's layout."""
    kinds = [cls.__name__ for cls in type(module).__mro__]
    function = capture_torch.target(module, case.torch)
    names = list(bind(function, case.args, case.kwargs))

    def convert(name: str, value: Any) -> Any:
        flat = flatten(value)
        arrays = []
        for leaf, array in flat.arrays:
            plain = capture_torch.to_numpy(array) if isinstance(array, torch.Tensor) else array
            full = f"{name}.{leaf}" if leaf else name
            floating = plain.dtype.kind in "fcV"
            how = layout_rules.reading(case.path, full, kinds, plain.ndim, floating, layout)
            moved = np.moveaxis(plain, 1, -1) if how.move else plain
            arrays.append(np.ascontiguousarray(moved).reshape(moved.shape))
        return rebuild(flat.skeleton, arrays) if arrays else value

    args = tuple(convert(names[min(i, len(names) - 1)], a) for i, a in enumerate(case.args))
    return args, {name: convert(name, value) for name, value in case.kwargs.items()}


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
        handed=max((x.error.rel_l2 for x in errors.handed if x.error.mae >= 0), default=0.0),
    )
