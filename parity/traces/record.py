"""Run the reference once and write a golden trace of it, case by case."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from parity.capture import torch as capture_torch
from parity.core.exceptions import InputError
from parity.core.files import alone_in, writable
from parity.core.lock import one_at_a_time
from parity.core.pair import Case, Pair, PairOptions
from parity.host.progress import Progress
from parity.options.arguments import check_choice, check_run, check_sequences
from parity.options.options import Options
from parity.options.scope import needed, scope_of
from parity.run.loop import pair_facts
from parity.run.running_reference import RunningReference
from parity.traces.arrays import ArrayFolder
from parity.traces.index import NAME, Index, StoredCase, StoredTensor, write_index
from parity.traces.methods import offline_of
from parity.traces.record_case import record_case


@dataclass(frozen=True)
class Written:
    """The trace that was written, the number of its cases and of the bytes of its arrays."""

    folder: Path
    cases: int
    nbytes: int


@one_at_a_time
def record_pair(
    pair: Pair,
    folder: Path,
    options: PairOptions | None = None,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    depth: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Record the reference of `pair` on the inputs that it makes, into `folder`.

    Arguments are those of `run_pair`: with `only` and `depth` a check says what such a run does.
    Of each case the outermost call is recorded whatever was chosen. The index is written last: a
    recording that was killed has left none, and can be made again in the same folder. Disk space is
    needed for one case in the temporary folder as well.

    Raises:
        InputError: something cannot be used, or the folder has a trace.
    """
    check_sequences(only=only)
    check_run(seed, depth, None, None)
    options = pair.resolved(options)
    offline_of(pair)
    with alone_in(writable(folder)):
        if (folder / NAME).exists():
            raise InputError(f"{folder}: has a trace; choose another --out, or remove it")
        return _record(pair, folder, options, seed, only, depth, progress or Progress())


def _record(
    pair: Pair,
    folder: Path,
    options: PairOptions,
    seed: int,
    only: Sequence[str],
    depth: int | None,
    progress: Progress,
) -> Written:
    progress.stage("making the reference")
    reference = pair.make_torch(options, seed)
    live, arrays = RunningReference(reference, seed), ArrayFolder(folder)
    progress.stage("making the inputs")
    scope, paths = Options(only=tuple(only), depth=depth, rename=pair.rename), [*live.modules()]
    check_choice(paths, scope)
    cases = needed(scope.only, paths, pair.cases(reference, options, seed))
    _check_names(cases)
    progress.stage("writing the weights")
    settings = dict(offline_of(pair).settings(reference))
    tensors, state = _weights(reference, arrays)
    done, stored = _record_cases(cases, live, pair, scope, arrays, progress)
    index = Index(
        pair=pair.name,
        layout=dict(pair.layout),
        settings=settings,
        environment=dict(live.environment()),
        facts=pair_facts(pair, reference, cases, options, seed),
        only=scope.only,
        depth=depth,
        modules=tuple(replace(info, path=path) for path, info in live.modules().items()),
        tensors=tensors,
        state=state,
        gaps=tuple(pair.unexercised(reference, done)),
        cases=tuple(stored),
    )
    write_index(folder, index)
    sizes = {buffer.digest: buffer.nbytes for buffer in index.buffers}
    return Written(folder, len(cases), sum(sizes.values()))


def _weights(
    reference: torch.nn.Module, arrays: ArrayFolder
) -> tuple[tuple[StoredTensor, ...], dict[str, Any]]:
    """The tensors of the modules, and those of the state dict by name, which are written."""
    numbers: dict[int, int] = {}
    tensors = []
    for one in capture_torch.named_tensors(reference):
        number = numbers.setdefault(one.identity, len(numbers) + 1)
        values = arrays.put(one.read())
        tensors.append(StoredTensor(one.path, one.name, one.buffer, number, values))
    state = {
        name: arrays.put(capture_torch.to_numpy(value))
        for name, value in reference.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    return tuple(tensors), state


def _record_cases(
    cases: Sequence[Case],
    live: RunningReference,
    pair: Pair,
    options: Options,
    arrays: ArrayFolder,
    progress: Progress,
) -> tuple[list[Case], list[StoredCase]]:
    """The cases with the arguments that the earlier ones decide on, and as they are stored.

    Raises:
        InputError: none calls a module that was asked for.
    """
    outputs: dict[str, Mapping[str, Any]] = {}
    done: list[Case] = []
    stored: list[StoredCase] = []
    shown = False
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        # what it returned before is recorded too, not taken for granted
        case = replace(case, returned_from=None)
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs))
        scope = scope_of(case, live.modules().keys(), (), options)
        with live.seeded():
            found, outputs[case.name] = record_case(case, live, pair, scope, arrays, progress)
        done.append(replace(case, args_from=None))
        stored.append(found)
        shown |= scope.whole or len(found.calls) > 1
    if not shown:
        chosen = ", ".join(filter(None, options.only))
        raise InputError(f"only: these inputs call no module that {chosen!r} matches")
    return done, stored


def _check_names(cases: Sequence[Case]) -> None:
    counts = Counter((case.name, case.path) for case in cases)
    for (name, path), count in counts.items():
        if count > 1:
            raise InputError(f"{count} cases of module {path!r} are named {name!r}; rename them")
