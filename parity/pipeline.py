"""The spine: inputs -> capture -> align -> measure -> attribute -> grade -> localise -> report.

The stages of one case stand in `case.py`; here are those of a whole comparison of two models.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flax import nnx

from parity.capture import torch as capture_torch
from parity.capture.restore_torch import seeded
from parity.core.exceptions import InputError
from parity.core.lock import alone
from parity.core.pair import Case, Pair
from parity.core.repro import Repro
from parity.core.tensors import Fused, Stacked, tied
from parity.core.tree import flatten
from parity.extras import emulation
from parity.extras.compiled_run import Compiled
from parity.host import environment, memory
from parity.host.progress import Progress
from parity.inputs import load_clip
from parity.options.arguments import (
    check_arguments,
    check_choice,
    check_globs,
    check_mappings,
    check_method,
    check_numbers,
    check_sequences,
)
from parity.options.options import Options
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
    *,
    nnx_args: tuple[Any, ...] | None = None,
    torch_kwargs: Mapping[str, Any] | None = None,
    nnx_kwargs: Mapping[str, Any] | None = None,
    torch_method: str | Callable[..., Any] = "__call__",
    nnx_method: str | Callable[..., Any] = "__call__",
    layout: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    fused: Sequence[Fused | Stacked] = (),
    only: Sequence[str] = (),
    depth: int | None = None,
    gradients: bool = False,
    check_compiled: bool = True,
    eager: bool = False,
    emulate: str | None = None,
    keep_repro: bool = False,
    seed: int = 0,
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
        torch_method: the reference's method, by name, or a callable
            `(module, *args) -> nested arrays`.
        nnx_method: the port's, likewise.
        layout: globs of `path` or `path#leaf` to `"channels_first"` (axis 1 is the channel) or
            `"as_is"` (the axes are the same on both sides).
        rename: globs of reference paths and tensors to those of the port.
        ignore: globs of `path`, `path#leaf` or tensors that have no counterpart. The report names
            what both sides have all the same, and is at best a WARN.
        fused: which tensors the port holds in another number of arrays.
        only: globs of the reference's modules. Both sides run once as they are; then these modules
            alone, with what they call, are judged, each call from the state in which the module is
            now. The report says so, and is at best a WARN.
        depth: how many levels below the compared module, or below those of `only`, are looked
            into; deeper ones count with the module around them. Such a report is at best a WARN.
        gradients: compare the backward pass too: the gradients of every input and parameter, from
            the same gradients at the outputs, which are N(0, 1) from `seed`.
        check_compiled: also run the port's method as one program that nobody records, and say if
            it returns something else; leave it out where that takes too long to compile.
        eager: run the port operation by operation, so that modules inside its own programs and
            loops are seen call by call.
        emulate: `"tpu-default"`, `"tf32"` or `"bf16"` (see `emulate.MEANINGS`): also run the port
            as hardware with such products would. Verdict, faults and table remain those of the
            port as it runs here; `report.emulations` says what the hardware adds.
        keep_repro: keep the call of the first fault, for `Report.write_repro`.
        seed: what torch's random numbers start from, so that a reference with random layers gives
            the same report again; torch's own stream is left as it was.
        progress: hears how far the comparison is.

    Returns:
        The report, which is true if its verdict is a PASS.

    Raises:
        InputError: the arguments cannot be used, a glob matches nothing, or `nnx_args` are not
            `torch_args` after layout.

    Example:
        >>> import numpy as np, parity, torch
        >>> from flax import nnx
        >>> reference, port = torch.nn.Linear(3, 2), nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        >>> port.kernel[...] = reference.weight.detach().numpy().T
        >>> port.bias[...] = reference.bias.detach().numpy()
        >>> x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
        >>> parity.compare(reference, port, (x,)).verdict
        'PASS'
        >>> port.bias[...] += 1
        >>> parity.compare(reference, port, (x,)).first_fault.cause
        'weights_value'
    """
    check_arguments(torch_module, nnx_module, torch_args, nnx_args, fused)
    check_sequences(ignore=ignore, only=only)
    check_mappings(torch_kwargs=torch_kwargs, nnx_kwargs=nnx_kwargs, layout=layout, rename=rename)
    check_numbers(seed, depth)
    check_method("torch_method", torch_module, torch_method)
    check_method("nnx_method", nnx_module, nnx_method)
    if gradients and only:
        raise InputError("gradients: they are of the whole, and only= does not; use depth=")
    emulation.check(emulate)
    capture_torch.check_devices(torch_module, torch_args, torch_kwargs or {})
    case = Case(
        name=torch_method if isinstance(torch_method, str) else "call",
        args=tuple(torch_args),
        kwargs=dict(torch_kwargs or {}),
        torch=torch_method,
        nnx=nnx_method,
        floor=True,
        shipped=Compiled(nnx_method) if check_compiled else None,
    )
    options = Options(
        declared=dict.fromkeys(ignore, "ignored by the caller"),
        rename=rename or {},
        layout=layout or {},
        fused=tuple(fused),
        tied=tied(capture_torch.named_tensors(torch_module)),
        leaves=tuple(glob for glob in ignore if "#" in glob),
        emulate=emulate,
        eager=eager,
        only=tuple(only),
        depth=depth,
        keep_repro=keep_repro,
    )
    options = check_globs(torch_module, nnx_module, options)
    own_args = None if nnx_args is None else tuple(nnx_args)
    own_kwargs = None if nnx_kwargs is None else dict(nnx_kwargs)
    start, progress = time.monotonic(), progress or Progress()
    live = Live(torch_module)
    progress.stage("comparing the weights")
    pairs = _paired(torch_module, nnx_module, options)

    backward = live.backward(case, seed) if gradients else None
    with seeded(seed):
        outcome = run_case(
            case,
            live,
            nnx_module,
            options,
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
    return assembled(name, [outcome], pairs, options, held, described)


def _paired(torch_module: torch.nn.Module, nnx_module: nnx.Module, options: Options) -> Paired:
    tensors = capture_torch.named_tensors(torch_module)
    return paired(capture_torch.modules(torch_module), tensors, nnx_module, options)


@alone
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
    eager: bool = False,
    only: Sequence[str] = (),
    depth: int | None = None,
    keep_repro: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Run a pair's ladder on a clip and on its synthetic inputs; see `load_clip` for the clip.

    `weights` and `config` are what the pair takes them for; `emulate`, `eager`, `only`,
    `depth` and `keep_repro` are as in `compare`. Cases that cannot show what `only` chooses are
    left out. In a process of its own, what JAX has compiled is dropped before
    the root is called with other shapes than the last time: these programs are hardly run again,
    and hold memory until the process ends. Raises `InputError` for whatever cannot be used.
    """
    emulation.check(emulate)
    check_sequences(only=only)
    check_numbers(seed, depth)
    progress = progress or Progress()
    pair.prepare()
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
    options = Options(
        pair.rungs, pair.declared, pair.rename, pair.layout, fused=pair.fused,
        emulate=emulate, eager=eager, only=tuple(only), depth=depth, keep_repro=keep_repro,
        tied=tied(capture_torch.named_tensors(reference)),
    )  # fmt: skip
    paths = [path for path, _ in reference.named_modules()]
    check_choice(paths, options)
    cases = needed(options.only, paths, pair.cases(reference, clip, seed))
    progress.stage("comparing the weights")
    pairs = _paired(reference, port, options)
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
            outcome = run_case(case, live, port, options, progress, weights=pairs.weight_map)
        if outcome.repro is not None:
            shown = _with_weights(outcome.repro, reference)
            outcome = replace(outcome, repro=made_by_pair(shown, weights, config, seed))
            options = replace(options, keep_repro=False)  # of one call the arrays are kept
        outcomes.append(outcome)
        outputs[case.name] = outcome.outputs
        seen |= {f"seen in {case.name}": outcome.seen} if outcome.seen else {}
        done.append(case)
    held = {
        **facts(pair, reference, clip, weights, config, seed),
        "seconds": round(time.monotonic() - start, 1),
        **progress.facts(),
        **seen,
        "weights_gib": memory.gib(sum(p.nbytes for p in reference.parameters())),
        "peak_memory_gib": memory.gib(memory.peak_memory()),
        "peak_memory_above_start_gib": memory.gib(memory.peak_memory() - before),
    }
    gaps = tuple(pair.unexercised(reference, done))
    described = environment.describe(seed, reference)
    return assembled(pair.name, outcomes, pairs, options, held, described, gaps)


def _with_weights(repro: Repro, root: torch.nn.Module) -> Repro:
    if repro.problem:
        return repro
    module = root.get_submodule(repro.fault.path)
    return with_weights(repro, capture_torch.named_tensors(module))
