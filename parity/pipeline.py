"""Comparisons of two models: arguments are checked, both sides made, all cases run.

The stages of one case stand in `run/case.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from flax import nnx

from parity.capture.modes import own_modes, uncompiled
from parity.core.lock import one_at_a_time
from parity.core.pair import Case, Pair, PairOptions
from parity.core.tensors import Fused, Stacked
from parity.core.time_limit import TimeLimit
from parity.extras.compiled_run import Compiled
from parity.host.notebook import shown_in_notebook
from parity.host.progress import Progress
from parity.options.arguments import (
    check_arguments,
    check_choice,
    check_globs,
    check_mappings,
    check_method,
    check_run,
    check_sequences,
)
from parity.options.options import Options
from parity.options.scope import needed
from parity.report import Report
from parity.run.assemble import Comparison
from parity.run.loop import Usage, pair_facts, run_cases
from parity.run.repro import made_by_function, made_by_pair
from parity.run.running_port import RunningPort
from parity.run.running_reference import RunningReference


@shown_in_notebook
@one_at_a_time
@own_modes()
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
    diagnosis_seconds: float | None = None,
    keep_repro: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Compare a PyTorch module with its NNX port, submodule by submodule.

    Args:
        torch_module: the reference; run without gradients, in the mode that it is in.
        nnx_module: the port, channel-last.
        torch_args: NumPy arrays or tensors, channel-first.
        nnx_args: the same for the port, channel-last; by default made from `torch_args`.
        torch_kwargs: keyword arguments of the reference.
        nnx_kwargs: keyword arguments of the port; by default made from `torch_kwargs`.
        torch_method: the reference's method, by name, or a callable
            `(module, *args) -> nested arrays`.
        nnx_method: the port's, likewise.
        layout: globs of `path` or `path#leaf` to `"channels_first"` (axis 1 is the channel) or
            `"as_is"` (the axes are the same on both sides).
        rename: globs of reference paths and tensors to those of the port, whatever these hold.
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
        check_compiled: also run the port's method as one program that nobody records, which fails
            if it returns something else; leave it out where that takes too long to compile.
        eager: run the port operation by operation, so that modules inside its own programs and
            loops are seen call by call.
        emulate: `"tpu-default"`, `"tf32"` or `"bf16"` (see `parity compare --help`): also run the
            port as hardware with such products would. Verdict, faults and table remain those of the
            port as it runs here; `report.emulations` says what the hardware adds.
        diagnosis_seconds: how long causes and lines of faults are looked for, all together; the
            report says what was not tried. By default a search ends after as much as 60 runs of
            the faulty call.
        keep_repro: keep the call of the first fault, for `Report.write_repro`.
        seed: what torch's random numbers start from, so that a reference with random layers gives
            the same report again; torch's own stream is left as it was.
        progress: is told how far the comparison is; without it a notebook shows that.

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
    check_run(seed, depth, emulate, diagnosis_seconds)
    check_method("torch_method", torch_module, torch_method)
    check_method("nnx_method", nnx_module, nnx_method)
    torch_module = uncompiled(torch_module)
    live = RunningReference(torch_module, seed)
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
        leaves=tuple(glob for glob in ignore if "#" in glob),
        emulate=emulate,
        eager=eager,
        only=tuple(only),
        depth=depth,
        gradients=gradients,
        diagnosis=TimeLimit(diagnosis_seconds),
        making=partial(made_by_function, seed) if keep_repro else None,
    )
    options = check_globs(torch_module, nnx_module, options)
    port = RunningPort(
        nnx_module,
        None if nnx_args is None else tuple(nnx_args),
        None if nnx_kwargs is None else dict(nnx_kwargs),
    )
    name = f"{type(torch_module).__name__} against {type(nnx_module).__name__}"
    comparison = Comparison(name, live, port, options, live.environment(), {})
    return run_cases(comparison, [case], progress or Progress(), Usage())


@shown_in_notebook
@one_at_a_time
@own_modes()
def run_pair(
    pair: Pair,
    options: PairOptions | None = None,
    *,
    seed: int = 0,
    emulate: str | None = None,
    eager: bool = False,
    only: Sequence[str] = (),
    depth: int | None = None,
    diagnosis_seconds: float | None = None,
    keep_repro: bool = False,
    progress: Progress | None = None,
    own_process: bool = False,
) -> Report:
    """Run a pair's ladder on the inputs that it makes.

    `options` are the pair's own, by name, and may be text; `emulate`, `eager`, `only`, `depth`,
    `diagnosis_seconds` and `keep_repro` are as in `compare`. Cases that cannot show what `only`
    chooses are left out. In a process of its own, what JAX has compiled is dropped before the root
    is called with other shapes than the last time: these programs are hardly run again, and hold
    memory until the process ends.

    Raises:
        InputError: an option cannot be used, or the pair refuses one of its own.
    """
    check_sequences(only=only)
    check_run(seed, depth, emulate, diagnosis_seconds)
    options, progress = pair.resolved(options), progress or Progress()
    pair.prepare(options, seed)
    usage = Usage()
    progress.stage("making both models")
    reference = uncompiled(pair.make_torch(options, seed))
    live = RunningReference(reference, seed)
    port = pair.make_nnx(options, reference)
    progress.stage("making the inputs")
    wanted = Options.of(
        pair,
        emulate=emulate,
        eager=eager,
        only=tuple(only),
        depth=depth,
        diagnosis=TimeLimit(diagnosis_seconds),
        making=partial(made_by_pair, options, seed) if keep_repro else None,
    )
    paths = [path for path, _ in reference.named_modules()]
    check_choice(paths, wanted)
    cases = needed(wanted.only, paths, pair.cases(reference, options, seed))
    known = pair_facts(pair, reference, cases, options, seed)
    running = RunningPort(port, own_process=own_process)
    comparison = Comparison(pair.name, live, running, wanted, live.environment(), known)
    gaps = partial(pair.unexercised, reference)
    return run_cases(comparison, cases, progress, usage, gaps=gaps)
