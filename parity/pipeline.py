"""The spine: inputs -> capture -> align -> measure -> attribute -> grade -> localise -> report."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from flax import nnx

from parity import capture_nnx, capture_torch, environment
from parity import layout as layout_rules
from parity.align import PORT_LACKS, REF_LACKS, Alignment, align, renamed, same_value
from parity.attribute import Sides, measure_inclusive
from parity.errors import InputError
from parity.grade import fail_limit, grade, judge
from parity.inputs import load_clip
from parity.localise import find_faults
from parity.measure import Key, measure_free, read
from parity.progress import Progress
from parity.recorder import bind, join
from parity.records import Case, Coverage, Fault, Inclusive, LeafMatch, Match, Pair, Row, Rung
from parity.report import Report
from parity.store import Store
from parity.tree import flatten, rebuild

MODES = ("free", "inclusive")


@dataclass(frozen=True)
class Rules:
    """What is asked of every case of a run."""

    rungs: tuple[Rung, ...] = ()
    declared: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    layout: Mapping[str, str] | None = None
    inclusive: bool = True


def compare(
    torch_module: torch.nn.Module,
    nnx_module: nnx.Module,
    torch_args: tuple[Any, ...],
    nnx_args: tuple[Any, ...] | None = None,
    torch_kwargs: Mapping[str, Any] | None = None,
    nnx_kwargs: Mapping[str, Any] | None = None,
    method: str | Mapping[str, Any] = "__call__",
    layout: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    modes: Sequence[str] = MODES,
    noise_floor: bool = True,
) -> Report:
    """Compare a PyTorch module with its NNX port, submodule by submodule.

    Args:
        torch_module: the reference; run without gradients, in the mode that it is in.
        nnx_module: the port, channel-last, with the same submodule names up to `rename`.
        torch_args: NumPy arrays or tensors, channel-first.
        nnx_args: the same for the port, channel-last; by default made from `torch_args`.
        torch_kwargs: keyword arguments of the reference.
        nnx_kwargs: keyword arguments of the port; by default made from `torch_kwargs`.
        method: name of the method to call, or `{"torch": ..., "nnx": ...}` with a name or a
            callable `(module, *args) -> nested arrays` each.
        layout: globs of `path` or `path#leaf` to `"move"` (axis 1 is the channel) or `"keep"`.
        rename: globs of reference paths to paths of the port.
        ignore: globs of `path` or `path#leaf` that need no counterpart.
        modes: `"free"` and, unless one table of outputs is enough, `"inclusive"`.
        noise_floor: measure R, the distance from float64 in units of PyTorch's own, for every
            call; otherwise only where the relative error alone does not settle the verdict.

    Raises:
        InputError: the arguments cannot be used, or `nnx_args` are not `torch_args` after layout.
    """
    unknown = set(modes) - set(MODES)
    if unknown or "free" not in modes:
        raise InputError(f"modes {tuple(modes)}: expected 'free', or 'free' and 'inclusive'")
    methods = {"torch": method, "nnx": method} if isinstance(method, str) else dict(method)
    if set(methods) != {"torch", "nnx"}:
        raise InputError(f"method {method!r}: expected a name or {{'torch': ..., 'nnx': ...}}")
    case = Case(
        name=methods["torch"] if isinstance(methods["torch"], str) else "call",
        args=tuple(torch_args),
        kwargs=dict(torch_kwargs or {}),
        torch=methods["torch"],
        nnx=methods["nnx"],
        floor=noise_floor,
    )
    rules = Rules(
        declared=dict.fromkeys(ignore, "ignored by the caller"),
        rename=rename or {},
        layout=layout or {},
        inclusive="inclusive" in modes,
    )
    own_args = None if nnx_args is None else tuple(nnx_args)
    own_kwargs = None if nnx_kwargs is None else dict(nnx_kwargs)
    start = time.monotonic()
    outcome = run_case(
        case, torch_module, nnx_module, rules, Progress(), nnx_args=own_args, nnx_kwargs=own_kwargs
    )
    facts = {"seconds": round(time.monotonic() - start, 1)}
    name = f"{type(torch_module).__name__} against {type(nnx_module).__name__}"
    return _report(name, [outcome], rules, facts, seed=None)


def run_pair(
    pair: Pair,
    *,
    video: str | None = None,
    frames: int = 17,
    size: tuple[int, int] = (64, 64),
    weights: str | None = None,
    config: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Run a pair's ladder on a clip and on its synthetic inputs; see `load_clip` for the clip.

    `weights` and `config` are what the pair takes them for. Raises `InputError` for whatever
    cannot be used.
    """
    progress = progress or Progress()
    start = time.monotonic()
    progress.stage("reading the clip")
    clip = load_clip(video, frames, size, seed)
    progress.stage("making both models")
    # With weights of its own the port is made first: its reader says what is wrong with them.
    loaded = pair.make_nnx(weights, config, None) if weights else None
    reference = pair.make_torch(weights, config, seed)
    port = loaded or pair.make_nnx(weights, config, reference)
    progress.stage("making the inputs")
    cases = pair.cases(reference, clip, seed)
    rules = Rules(pair.rungs, pair.declared, pair.rename, pair.layout)
    outcomes: list[Outcome] = []
    outputs: dict[str, Mapping[str, Any]] = {}
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        outcome = run_case(case, reference, port, rules, progress)
        outcomes.append(outcome)
        outputs[case.name] = outcome.outputs
    facts = {
        "input": clip.source,
        "weights": weights
        or f"random, torch.manual_seed({seed}), norm weights 1+0.3N, biases 0.2N",
        "config": config or ("of the weights" if weights else "default"),
        "parameters": sum(p.numel() for p in reference.parameters()),
        "seconds": round(time.monotonic() - start, 1),
        "peak_memory_gib": round(environment.peak_memory() / 2**30, 2),
    }
    return _report(pair.name, outcomes, rules, facts, seed)


@dataclass(frozen=True)
class Outcome:
    """What one case gave; `outputs` are the reference's, channel-first, by leaf."""

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    coverage: Coverage
    outputs: Mapping[str, Any]


def run_case(
    case: Case,
    torch_root: torch.nn.Module,
    nnx_root: nnx.Module,
    rules: Rules,
    progress: Progress,
    nnx_args: tuple[Any, ...] | None = None,
    nnx_kwargs: dict[str, Any] | None = None,
) -> Outcome:
    """Run both sides on one input, and measure, judge and locate."""
    layout, rename, declared = rules.layout or {}, rules.rename or {}, rules.declared or {}
    layout_rules.check(layout)
    torch_module, nnx_module = _called(case, torch_root, nnx_root, rename)
    with Store() as store:
        progress.stage("reference")
        ref = capture_torch.record(
            torch_module, case.torch, case.args, case.kwargs,
            store=store, layout=layout, prefix=case.path, depth=case.depth,
        )  # fmt: skip
        given, given_kwargs = _port_arguments(case, torch_module, layout)
        progress.stage("port")
        with nullcontext() if case.jit else jax.disable_jit():
            port = capture_nnx.record(
                nnx_module,
                case.nnx,
                given if nnx_args is None else nnx_args,
                given_kwargs if nnx_kwargs is None else nnx_kwargs,
                store=store,
                prefix=renamed(case.path, rename),
                depth=case.depth,
            )
        alignment = align(ref, port, rename=rename, declared=declared)
        _check_inputs(alignment)
        free = measure_free(alignment.matches, store, progress)
        inclusive: Mapping[Key, Inclusive] = {}
        if rules.inclusive:
            sides = Sides(
                _joined(case.path, dict(torch_module.named_modules())),
                _joined(renamed(case.path, rename), capture_nnx.submodules(nnx_module)),
                case.torch,
                case.nnx,
            )
            limit = None if case.floor else fail_limit
            inclusive = measure_inclusive(alignment.matches, sides, store, limit, progress)
        outputs = {
            leaf.name: np.ascontiguousarray(read(store, leaf.buffer, undo=leaf.moved))
            for leaf in ref.calls[-1].outputs
            if leaf.buffer is not None
        }
    rows, own = _rows(case, alignment, free, inclusive, rules)
    parents = {match.ref.order: match.parent for match in alignment.matches}
    return Outcome(tuple(rows), find_faults(rows, own, parents), alignment.coverage, outputs)


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
        return rebuild(flat.skeleton, arrays)

    args = tuple(convert(names[min(i, len(names) - 1)], a) for i, a in enumerate(case.args))
    return args, {name: convert(name, value) for name, value in case.kwargs.items()}


def _check_inputs(alignment: Alignment) -> None:
    """Refuse root inputs of the port that are not the reference's after layout."""
    root = next((match for match in alignment.matches if match.ref.parent == -1), None)
    if root is None:
        return
    found = {leaf.ref.name: "" if _equal(leaf) else leaf.problem or "other values"
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


def _equal(leaf: LeafMatch) -> bool:
    if leaf.problem or leaf.port is None:
        return False
    return leaf.undo or leaf.ref.buffer == leaf.port.buffer


def _rows(
    case: Case,
    alignment: Alignment,
    free: Mapping[Any, Any],
    inclusive: Mapping[Any, Any],
    rules: Rules,
) -> tuple[list[Row], list[bool]]:
    rows: list[Row] = []
    own: list[bool] = []
    by_kind = {kind: rung for rung in rules.rungs for kind in rung.kinds}
    for match in alignment.matches:
        rung = by_kind.get(match.ref.kind)
        for leaf in match.outputs:
            if leaf.declared:  # the reason is in the coverage
                continue
            key = (match.ref.order, leaf.ref.name)
            measured, error = free.get(key), inclusive.get(key)
            if measured is None and not leaf.problem:
                continue  # equal values that are no arrays
            verdict = judge(match.ref.kind, leaf, measured, error, rung=rung, r_limit=case.r_limit)
            rows.append(_row(case, match, leaf, measured, error, rung, verdict))
            own.append(verdict.own and verdict.verdict == "FAIL")
    return rows, own


def _row(
    case: Case, match: Match, leaf: LeafMatch, free: Any, error: Any, rung: Rung | None, judged: Any
) -> Row:
    buffer = leaf.ref.buffer
    figures = error if error is not None else free
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
        metrics=free,
        inclusive=error,
        grade=grade(figures.mae) if figures is not None else "",
        verdict=judged.verdict,
        reason=judged.reason,
        order=match.ref.order,
        parent=match.parent,
        limited=case.r_limit is None,
        one_sided=leaf.problem in (PORT_LACKS, REF_LACKS),
    )


def _report(
    name: str,
    outcomes: Sequence[Outcome],
    rules: Rules,
    facts: Mapping[str, Any],
    seed: int | None,
) -> Report:
    return Report(
        name=name,
        rows=tuple(row for outcome in outcomes for row in outcome.rows),
        faults=_merged_faults([fault for outcome in outcomes for fault in outcome.faults]),
        coverage=_merged_coverage([outcome.coverage for outcome in outcomes]),
        environment=environment.describe(seed),
        facts=facts,
        rungs=rules.rungs,
    )


def _merged_faults(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """One fault per module: its first, with the number of calls over all cases."""
    merged: dict[str, Fault] = {}
    for fault in faults:
        first = merged.get(fault.path)
        merged[fault.path] = (
            fault if first is None else replace(first, calls=first.calls + fault.calls)
        )
    return tuple(merged.values())


def _merged_coverage(parts: Sequence[Coverage]) -> Coverage:
    """Coverage of several cases: a module is matched if one case matched it.

    Module and tensor counts are those of the widest case.
    """
    widest = max(parts, key=lambda part: part.modules)
    matched = {path: None for part in parts for path in part.matched}
    unmatched = {path: None for part in parts for path in part.unmatched if path not in matched}
    dissolved = {path: why for part in parts for path, why in part.dissolved.items()}
    declared = {path: why for part in parts for path, why in part.declared.items()}
    return replace(
        widest,
        matched=tuple(matched),
        unmatched=tuple(unmatched),
        declared={
            path: why
            for path, why in declared.items()
            if path not in matched and path not in unmatched and path not in dissolved
        },
        dissolved={path: why for path, why in dissolved.items() if path not in matched},
        calls=sum(part.calls for part in parts),
        matched_calls=sum(part.matched_calls for part in parts),
        unmatched_calls=tuple(text for part in parts for text in part.unmatched_calls),
        unmatched_tensors=tuple({text: None for part in parts for text in part.unmatched_tensors}),
    )
