"""The spine: inputs -> capture -> align -> measure -> attribute -> grade -> localise -> report.

The stages of one case stand in `case.py`; here are those of a whole comparison.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import torch
from flax import nnx

from parity import capture_nnx, capture_torch, environment, memory
from parity import emulate as emulation
from parity.adequacy import unexercised
from parity.case import MODES, Outcome, Rules, run_case
from parity.errors import InputError
from parity.folding import Folding, fold
from parity.globs import check_used, renamed
from parity.inputs import load_clip
from parity.ledger import make_ledger
from parity.observer import Compiled
from parity.packed import globs
from parity.progress import Progress
from parity.records import Case, Coverage, Fault, Pair
from parity.report import Report
from parity.state import seeded
from parity.tally import settled, with_weights
from parity.tree import flatten
from parity.weights import Fused, Stacked, Weight

PORTRAITS = 12
"""How many faults of a report have a portrait: each takes up to 50 kB of it."""


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
    seed: int = 0,
    weights: Sequence[Fused | Stacked] = (),
    emulate: str | None = None,
    disable_jit: bool = False,
    jitted: bool = True,
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
        rename: globs of reference paths and tensors to those of the port.
        ignore: globs of `path`, `path#leaf` or tensors that need no counterpart.
        modes: `"free"`, and unless one table of outputs is enough `"exclusive"`, and unless the
            own errors of containers are, `"inclusive"`.
        noise_floor: measure R, the distance from float64 in units of PyTorch's own, for every
            call; otherwise only where the relative error alone does not show that R is under 1.5
            times what fails.
        seed: what torch's random numbers start from, so that a reference with random layers gives
            the same report again; torch's own stream is left as it was.
        weights: which tensors the port holds in another number of arrays.
        emulate: `"tpu-default"`, `"tf32"` or `"bf16"` (see `emulate.MEANINGS`): also run the port
            as hardware with such products would. Verdict, faults and table remain those of the
            port as it runs here; `report.emulations` says what the hardware adds.
        disable_jit: run the port operation by operation, so that modules inside its own programs
            and loops are seen call by call.
        jitted: also run the port's method as one program that nobody records, and say if it
            returns something else; leave it out where that takes too long to compile.

    Raises:
        InputError: the arguments cannot be used, a glob matches nothing, or `nnx_args` are not
            `torch_args` after layout.
    """
    _check_arguments(torch_module, nnx_module, torch_args, nnx_args, ignore, weights)
    unknown = set(modes) - set(MODES)
    if unknown or "free" not in modes or ("inclusive" in modes and "exclusive" not in modes):
        raise InputError(f"modes {tuple(modes)}: expected the first one, two or three of {MODES}")
    methods = {"torch": method, "nnx": method} if isinstance(method, str) else dict(method)
    if set(methods) != {"torch", "nnx"}:
        raise InputError(f"method {method!r}: expected a name or {{'torch': ..., 'nnx': ...}}")
    for side, module in (("torch", torch_module), ("nnx", nnx_module)):
        if isinstance(methods[side], str) and not callable(getattr(module, methods[side], None)):
            raise InputError(f"method: {type(module).__name__} ({side}) has no {methods[side]!r}")
    emulation.check(emulate)
    capture_torch.check_devices(torch_module, torch_args, torch_kwargs or {})
    case = Case(
        name=methods["torch"] if isinstance(methods["torch"], str) else "call",
        args=tuple(torch_args),
        kwargs=dict(torch_kwargs or {}),
        torch=methods["torch"],
        nnx=methods["nnx"],
        floor=noise_floor,
        shipped=Compiled(methods["nnx"]) if jitted else None,
    )
    rules = Rules(
        declared=dict.fromkeys(ignore, "ignored by the caller"),
        rename=rename or {},
        layout=layout or {},
        modes=tuple(modes),
        weights=tuple(weights),
        leaves=tuple(glob for glob in ignore if "#" in glob),
        emulate=emulate,
        disable_jit=disable_jit,
    )
    _check_globs(torch_module, nnx_module, rules)
    own_args = None if nnx_args is None else tuple(nnx_args)
    own_kwargs = None if nnx_kwargs is None else dict(nnx_kwargs)
    start = time.monotonic()
    folding = _folding(torch_module, nnx_module, rules)
    ledger = _ledger(torch_module, nnx_module, rules, folding)
    with seeded(seed):
        outcome = run_case(
            case, torch_module, nnx_module, rules, Progress(), own_args, own_kwargs, ledger
        )
    facts = {"seconds": round(time.monotonic() - start, 1)}
    name = f"{type(torch_module).__name__} against {type(nnx_module).__name__}"
    return _report(name, torch_module, [outcome], ledger, folding, rules, facts, seed)


def _check_arguments(
    torch_module: object,
    nnx_module: object,
    torch_args: object,
    nnx_args: object,
    ignore: object,
    weights: Sequence[object],
) -> None:
    kinds = f"{type(torch_module).__name__} and {type(nnx_module).__name__}"
    if not isinstance(torch_module, torch.nn.Module) or not isinstance(nnx_module, nnx.Module):
        raise InputError(
            f"expected a torch.nn.Module and an nnx.Module, in this order, not {kinds}"
        )
    for name, value in (("torch_args", torch_args), ("nnx_args", nnx_args)):
        if value is not None and not isinstance(value, (tuple, list)):
            kind = type(value).__name__
            raise InputError(f"{name}: expected a tuple of arguments, found a bare {kind}")
    if isinstance(ignore, str):
        raise InputError(f"ignore: expected a sequence of globs, found the string {ignore!r}")
    for rule in weights:
        if not isinstance(rule, (Fused, Stacked)):
            kind = type(rule).__name__
            raise InputError(f"weights: expected parity.Fused or parity.Stacked, found a {kind}")


def _check_globs(torch_module: torch.nn.Module, nnx_module: nnx.Module, rules: Rules) -> None:
    """Refuse what names nothing: a mistyped name would be left out without a word."""
    tensors = [tensor.full_name for tensor in capture_torch.named_tensors(torch_module)]
    theirs = [path for path, _ in torch_module.named_modules()]
    leaves = [tensor.full_name for tensor in capture_nnx.named_tensors(nnx_module)]
    ours = [*capture_nnx.submodules(nnx_module), *leaves]
    what = "module or tensor"
    check_used("rename", rules.rename or (), [*theirs, *tensors], f"{what} of the reference")
    plain = [glob for glob in rules.declared or () if glob not in rules.leaves]
    check_used("ignore", plain, [*theirs, *tensors, *ours], what, fnmatchcase)
    check_used("layout", rules.layout or (), theirs, "module of the reference", _of_path)
    names = [glob for rule in rules.weights for glob in globs(rule)]
    check_used("weights", names, tensors, "tensor of the reference")


def _of_path(path: str, glob: str) -> bool:
    """Whether a glob of `path` or `path#leaf` is of this path; leaves are not known yet."""
    return fnmatchcase(path, glob.partition("#")[0])


def _folding(torch_module: torch.nn.Module, nnx_module: nnx.Module, rules: Rules) -> Folding:
    theirs = capture_torch.modules(torch_module)
    found = capture_nnx.submodules(nnx_module)
    ours = {path: capture_nnx.module_info(path, child) for path, child in found.items()}
    return fold(theirs, ours, {path: renamed(path, rules.rename or {}) for path in theirs})


def _ledger(
    torch_module: torch.nn.Module, nnx_module: nnx.Module, rules: Rules, folding: Folding
) -> tuple[Weight, ...]:
    return make_ledger(
        capture_torch.named_tensors(torch_module),
        capture_nnx.named_tensors(nnx_module),
        modules=capture_nnx.submodules(nnx_module),
        folding=folding,
        rename=rules.rename,
        rules=rules.weights,
        declared=rules.declared,
    )


def run_pair(
    pair: Pair,
    *,
    video: str | None = None,
    frames: int = 17,
    size: tuple[int, int] = (64, 64),
    weights: str | None = None,
    config: str | None = None,
    seed: int = 0,
    emulate: str | None = None,
    disable_jit: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Run a pair's ladder on a clip and on its synthetic inputs; see `load_clip` for the clip.

    `weights` and `config` are what the pair takes them for; `emulate` and `disable_jit` are as in
    `compare`. In a process of its own, what JAX has compiled is dropped before the root is called
    with other shapes than the last time: these programs are hardly run again, and hold memory until
    the process ends. Raises `InputError` for whatever cannot be used.
    """
    emulation.check(emulate)
    progress = progress or Progress()
    start, before = time.monotonic(), memory.resident_memory()
    progress.stage("reading the clip")
    clip = load_clip(video, frames, size, seed)
    progress.stage("making both models")
    # With weights of its own the port is made first: its reader says what is wrong with them.
    loaded = pair.make_nnx(weights, config, None) if weights else None
    reference = pair.make_torch(weights, config, seed)
    capture_torch.check_devices(reference, (), {})
    port = loaded or pair.make_nnx(weights, config, reference)
    progress.stage("making the inputs")
    cases = pair.cases(reference, clip, seed)
    rules = Rules(
        pair.rungs, pair.declared, pair.rename, pair.layout, weights=pair.weights,
        emulate=emulate, disable_jit=disable_jit,
    )  # fmt: skip
    progress.stage("comparing the weights")
    folding = _folding(reference, port, rules)
    ledger = _ledger(reference, port, rules, folding)
    outcomes: list[Outcome] = []
    outputs: dict[str, Mapping[str, Any]] = {}
    done: list[Case] = []
    last_shapes: tuple[tuple[int, ...], ...] = ()
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        shapes = tuple(array.shape for _, array in flatten((case.args, case.kwargs)).arrays)
        if own_process and not case.path and shapes != last_shapes:
            jax.clear_caches()
            memory.give_back()
            last_shapes = shapes
        with seeded(seed):
            outcome = run_case(
                case, reference, port, rules, progress, weights=ledger, before=outputs
            )
            outcomes.append(outcome)
        outputs[case.name] = outcomes[-1].outputs
        done.append(case)
    largest = progress.largest()
    stages = progress.seconds()
    slowest = max(stages, key=lambda name: stages[name])
    facts: dict[str, Any] = {
        "input": clip.source,
        "weights": weights
        or f"random, torch.manual_seed({seed}), norm weights 1+0.3N, biases 0.2N",
        "config": config or ("of the weights" if weights else "default"),
        "parameters": sum(p.numel() for p in reference.parameters()),
        "seconds": round(time.monotonic() - start, 1),
        "seconds_by_stage": stages,
        "slowest_stage": f"{slowest}, {100 * stages[slowest] / (sum(stages.values()) or 1):.0f} %",
        "weights_gib": memory.gib(sum(p.nbytes for p in reference.parameters())),
        "peak_memory_gib": memory.gib(memory.peak_memory()),
        "peak_memory_above_start_gib": memory.gib(memory.peak_memory() - before),
        "largest_stage": largest.name,
        "largest_stage_gib": memory.gib(largest.rise),
    }
    gaps = tuple(pair.unexercised(reference, done))
    return _report(pair.name, reference, outcomes, ledger, folding, rules, facts, seed, gaps)


def _report(
    name: str,
    reference: torch.nn.Module,
    outcomes: Sequence[Outcome],
    ledger: Sequence[Weight],
    folding: Folding,
    rules: Rules,
    facts: Mapping[str, Any],
    seed: int,
    gaps: tuple[str, ...] = (),
) -> Report:
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    coverage = _merged_coverage([outcome.coverage for outcome in outcomes])
    weights = settled(ledger, coverage, rows)
    uncaptured = {case: fact for outcome in outcomes for case, fact in outcome.uncaptured.items()}
    return Report(
        name=name,
        rows=rows,
        faults=_merged_faults([fault for outcome in outcomes for fault in outcome.faults]),
        coverage=with_weights(coverage, weights, folding.partners),
        environment=environment.describe(seed, reference),
        facts={**facts, **({"uncaptured": uncaptured} if uncaptured else {})},
        rungs=rules.rungs,
        weights=weights,
        outputs=outcomes[-1].outputs,
        inputs=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
        unexercised=(*unexercised([outcome.exercised for outcome in outcomes]), *gaps),
        emulations=tuple(outcome.emulation for outcome in outcomes if outcome.emulation),
        nonfinite=tuple(one for outcome in outcomes for one in outcome.nonfinite),
    )


def _merged_faults(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """One fault per module: its first, with the number of calls over all cases."""
    merged: dict[str, Fault] = {}
    for fault in faults:
        first = merged.get(fault.path)
        if first is not None:
            merged[fault.path] = replace(first, calls=first.calls + fault.calls)
        elif len(merged) < PORTRAITS:
            merged[fault.path] = fault
        else:
            merged[fault.path] = replace(fault, portrait=None)
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
    )
