"""The spine: inputs -> capture -> align -> measure -> attribute -> grade -> localise -> report.

The stages of one case stand in `case.py`; here are those of a whole comparison.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flax import nnx

from parity import emulate as emulation
from parity import environment
from parity.case import MODES, Outcome, Rules, run_case
from parity.errors import InputError
from parity.inputs import load_clip
from parity.observer import Compiled
from parity.progress import Progress
from parity.records import Case, Coverage, Fault, Pair
from parity.report import Report


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
        rename: globs of reference paths to paths of the port.
        ignore: globs of `path` or `path#leaf` that need no counterpart.
        modes: `"free"`, and unless one table of outputs is enough `"exclusive"`, and unless the
            own errors of containers are, `"inclusive"`.
        noise_floor: measure R, the distance from float64 in units of PyTorch's own, for every
            call; otherwise only where the relative error alone does not settle the verdict.
        emulate: `"tpu-default"`, `"tf32"` or `"bf16"` (see `emulate.MEANINGS`): also run the port
            as hardware with such products would. Verdict, faults and table remain those of the
            port as it runs here; `report.emulations` says what the hardware adds.
        disable_jit: run the port operation by operation, so that modules inside its own programs
            and loops are seen call by call.
        jitted: also run the port's method as one program that nobody records, and say if it
            returns something else; leave it out where that takes too long to compile.

    Raises:
        InputError: the arguments cannot be used, or `nnx_args` are not `torch_args` after layout.
    """
    _check_arguments(torch_module, nnx_module, torch_args, nnx_args, ignore)
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
        emulate=emulate,
        disable_jit=disable_jit,
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


def _check_arguments(
    torch_module: object, nnx_module: object, torch_args: object, nnx_args: object, ignore: object
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
) -> Report:
    """Run a pair's ladder on a clip and on its synthetic inputs; see `load_clip` for the clip.

    `weights` and `config` are what the pair takes them for; `emulate` and `disable_jit` are as in
    `compare`. Raises `InputError` for whatever cannot be used.
    """
    emulation.check(emulate)
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
    rules = Rules(
        pair.rungs, pair.declared, pair.rename, pair.layout, emulate=emulate,
        disable_jit=disable_jit,
    )  # fmt: skip
    outcomes: list[Outcome] = []
    outputs: dict[str, Mapping[str, Any]] = {}
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        outcomes.append(run_case(case, reference, port, rules, progress))
        outputs[case.name] = outcomes[-1].outputs
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


def _report(
    name: str,
    outcomes: Sequence[Outcome],
    rules: Rules,
    facts: Mapping[str, Any],
    seed: int | None,
) -> Report:
    uncaptured = {case: fact for outcome in outcomes for case, fact in outcome.uncaptured.items()}
    return Report(
        name=name,
        rows=tuple(row for outcome in outcomes for row in outcome.rows),
        faults=_merged_faults([fault for outcome in outcomes for fault in outcome.faults]),
        coverage=_merged_coverage([outcome.coverage for outcome in outcomes]),
        environment=environment.describe(seed),
        facts={**facts, **({"uncaptured": uncaptured} if uncaptured else {})},
        rungs=rules.rungs,
        inputs=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
        emulations=tuple(outcome.emulation for outcome in outcomes if outcome.emulation),
        nonfinite=tuple(one for outcome in outcomes for one in outcome.nonfinite),
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
