"""The spine: inputs -> capture -> align -> measure -> attribute -> grade -> localise -> report.

The stages of one case stand in `case.py`; here are those of a whole comparison of two models.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flax import nnx

from parity.capture import torch as capture_torch
from parity.capture.restore_torch import seeded
from parity.core.exceptions import InputError
from parity.core.lock import alone
from parity.core.pair import Case, Pair, PairOptions
from parity.core.repro import Repro
from parity.core.tensors import Fused, Stacked, tied
from parity.core.tree import flatten
from parity.extras import emulation
from parity.extras.compiled_run import Compiled
from parity.host import environment, memory
from parity.host.progress import Progress
from parity.options.arguments import (
    check_arguments,
    check_choice,
    check_globs,
    check_mappings,
    check_methods,
    check_numbers,
    check_sequences,
)
from parity.options.options import GRAD, MODES, Rules
from parity.options.scope import needed
from parity.report import Report
from parity.run.assemble import Paired, Programs, assembled, paired
from parity.run.case import Outcome, run_case
from parity.run.live import Live, facts
from parity.run.repro import made_by_function, made_by_pair, with_weights


@alone
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
    only: Sequence[str] = (),
    depth: int | None = None,
    repro: bool = False,
    progress: Progress | None = None,
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
        ignore: globs of `path`, `path#leaf` or tensors that have no counterpart. The report names
            what both sides have all the same, and is at best a WARN.
        modes: `"free"`, and unless one table of outputs is enough `"exclusive"`, and unless the
            own errors of containers are, `"inclusive"`; `"grad"` beside them or alone: the
            gradients of every input and parameter, from the same gradients at the outputs, which
            are N(0, 1) from `seed`.
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
        only: globs of the reference's modules. Both sides run once as they are; then these modules
            alone, with what they call, are judged, each call from the state in which the module is
            now. The report says so, and is at best a WARN.
        depth: how many levels below the compared module, or below those of `only`, are looked
            into; deeper ones count with the module around them. Such a report is at best a WARN.
        repro: keep the call of the first fault, for `Report.bundle`.
        progress: hears how far the comparison is.

    Raises:
        InputError: the arguments cannot be used, a glob matches nothing, or `nnx_args` are not
            `torch_args` after layout.
    """
    check_arguments(torch_module, nnx_module, torch_args, nnx_args, weights)
    check_sequences(ignore=ignore, only=only, modes=modes)
    check_mappings(torch_kwargs=torch_kwargs, nnx_kwargs=nnx_kwargs, layout=layout, rename=rename)
    check_numbers(seed, depth)
    forward = tuple(mode for mode in modes if mode != GRAD)
    wanted = [set(MODES[:n]) for n in range(0 if GRAD in modes else 1, len(MODES) + 1)]
    if set(forward) not in wanted:
        raise InputError(
            f"modes {tuple(modes)}: expected the first one, two or three of {MODES}, with or "
            f"without {GRAD!r}, or {GRAD!r} alone"
        )
    if GRAD in modes and only:
        raise InputError(
            "modes: gradients are of the whole, and only= leaves a part out: use depth= instead"
        )
    methods = check_methods(method)
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
        only=tuple(only),
        depth=depth,
        repro=repro,
    )
    rules = check_globs(torch_module, nnx_module, rules)
    rules = replace(rules, tied=tied(capture_torch.named_tensors(torch_module)))
    own_args = None if nnx_args is None else tuple(nnx_args)
    own_kwargs = None if nnx_kwargs is None else dict(nnx_kwargs)
    start, progress = time.monotonic(), progress or Progress()
    live = Live(torch_module)
    progress.stage("comparing the weights")
    pairs = _paired(torch_module, nnx_module, rules)

    backward = live.backward(case, seed) if GRAD in modes else None
    with seeded(seed):
        outcome = run_case(
            case,
            live,
            nnx_module,
            rules,
            progress,
            own_args,
            own_kwargs,
            pairs.weight_map,
            backward,
        )
    held = {"seconds": round(time.monotonic() - start, 1), **progress.facts()}
    if outcome.repro is not None:
        shown = made_by_function(_with_weights(outcome.repro, torch_module), seed)
        outcome = replace(outcome, repro=shown)
    name = f"{type(torch_module).__name__} against {type(nnx_module).__name__}"
    described = environment.describe(seed, torch_module)
    return assembled(name, [outcome], pairs, rules, held, described)


def _paired(torch_module: torch.nn.Module, nnx_module: nnx.Module, rules: Rules) -> Paired:
    tensors = capture_torch.named_tensors(torch_module)
    return paired(capture_torch.modules(torch_module), tensors, nnx_module, rules)


@alone
def run_pair(
    pair: Pair,
    options: PairOptions | None = None,
    *,
    seed: int = 0,
    emulate: str | None = None,
    disable_jit: bool = False,
    only: Sequence[str] = (),
    depth: int | None = None,
    repro: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Run a pair's ladder on the inputs that it makes.

    `options` are the pair's own, by name, and may be text; `emulate`, `disable_jit`, `only`,
    `depth` and `repro` are as in `compare`. Cases that cannot show what `only` chooses are left
    out. In a process of its own, what JAX has compiled is dropped before
    the root is called with other shapes than the last time: these programs are hardly run again,
    and hold memory until the process ends. Raises `InputError` for whatever cannot be used.
    """
    emulation.check(emulate)
    check_sequences(only=only)
    check_numbers(seed, depth)
    options, progress = pair.resolved(options), progress or Progress()
    pair.prepare()
    start, before = time.monotonic(), memory.resident_memory()
    progress.stage("making both models")
    reference = pair.make_torch(options, seed)
    capture_torch.check_devices(reference, (), {})
    port = pair.make_nnx(options, reference)
    progress.stage("making the inputs")
    rules = Rules(
        pair.rungs, pair.declared, pair.rename, pair.layout, weights=pair.weights,
        emulate=emulate, disable_jit=disable_jit, only=tuple(only), depth=depth, repro=repro,
        tied=tied(capture_torch.named_tensors(reference)),
    )  # fmt: skip
    paths = [path for path, _ in reference.named_modules()]
    check_choice(paths, rules)
    cases = needed(rules.only, paths, pair.cases(reference, options, seed))
    progress.stage("comparing the weights")
    pairs = _paired(reference, port, rules)
    outcomes: list[Outcome] = []
    outputs: dict[str, Mapping[str, Any]] = {}
    live = Live(reference, outputs)
    done: list[Case] = []
    seen: dict[str, str] = {}
    programs = Programs(own_process)
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        shapes = [array.shape for _, array in flatten((case.args, case.kwargs)).arrays]
        programs.before(case.path, shapes)
        with seeded(seed):
            outcome = run_case(case, live, port, rules, progress, weights=pairs.weight_map)
        if outcome.repro is not None:
            shown = _with_weights(outcome.repro, reference)
            outcome = replace(outcome, repro=made_by_pair(shown, options, seed))
            rules = replace(rules, repro=False)  # of one call the arrays are kept
        outcomes.append(outcome)
        outputs[case.name] = outcome.outputs
        seen |= {f"seen in {case.name}": outcome.seen} if outcome.seen else {}
        done.append(case)
    held = {
        **facts(pair, reference, done, options, seed),
        "seconds": round(time.monotonic() - start, 1),
        **progress.facts(),
        **seen,
        "weights_gib": memory.gib(sum(p.nbytes for p in reference.parameters())),
        "peak_memory_gib": memory.gib(memory.peak_memory()),
        "peak_memory_above_start_gib": memory.gib(memory.peak_memory() - before),
    }
    gaps = tuple(pair.unexercised(reference, done))
    described = environment.describe(seed, reference)
    return assembled(pair.name, outcomes, pairs, rules, held, described, gaps)


def _with_weights(repro: Repro, root: torch.nn.Module) -> Repro:
    if repro.problem:
        return repro
    module = root.get_submodule(repro.fault.path)
    return with_weights(repro, capture_torch.named_tensors(module))
