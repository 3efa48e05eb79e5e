"""Run the reference once and write a golden trace of it, case by case.

A recording that was killed goes on with the first case that is not whole in the folder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.capture import torch as capture_torch
from parity.capture.restore_torch import seeded
from parity.core.exceptions import InputError
from parity.core.lock import alone
from parity.core.pair import Case, Offline, Pair, PairOptions
from parity.core.store import Store
from parity.host.progress import Progress
from parity.options.arguments import check_choice, check_sequences
from parity.options.options import Options
from parity.options.scope import needed, scope_of
from parity.run.facts import facts
from parity.run.live import Live
from parity.traces.folder import Folder
from parity.traces.index import NOT_OFFLINE
from parity.traces.lock import locked
from parity.traces.record_case import record_case
from parity.traces.request import requested

SHARD_SIZE = 1 << 30


@dataclass(frozen=True)
class Recording:
    """The trace that was written; `kept` of its `cases` were there from a recording before."""

    folder: Path
    cases: int
    kept: int
    nbytes: int


@alone
def record_pair(
    pair: Pair,
    folder: Path,
    options: PairOptions | None = None,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    depth: int | None = None,
    shard_size: int = SHARD_SIZE,
    progress: Progress | None = None,
) -> Recording:
    """Record the reference of `pair` on the inputs that it makes, into `folder`.

    Arguments are those of `run_pair`: with `only` and `depth` a check says what such a run does.
    Of each case the outermost call is recorded whatever was chosen. Files have at most `shard_size`
    bytes each, or one array. Disk space is needed for one case in the temporary folder as well.

    Raises:
        InputError: something cannot be used, another recording writes to the folder, or it has
            another trace.
    """
    check_sequences(only=only)
    options = pair.resolved(options)
    if pair.offline is None:
        raise InputError(NOT_OFFLINE.format(pair.name))
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _record(
            pair, pair.offline, folder, Options(only=tuple(only), depth=depth), shard_size,
            progress or Progress(), options, seed,
        )  # fmt: skip


def _record(
    pair: Pair,
    offline: Offline,
    folder: Path,
    rules: Options,
    shard_size: int,
    progress: Progress,
    options: PairOptions,
    seed: int,
) -> Recording:
    progress.stage("making the reference")
    reference = pair.make_torch(options, seed)
    capture_torch.check_devices(reference, (), {})
    progress.stage("making the inputs")
    paths = [path for path, _ in reference.named_modules()]
    check_choice(paths, rules)
    cases = needed(rules.only, paths, pair.cases(reference, options, seed))
    _check_names(cases)
    progress.stage("writing the weights")
    index, arrays = requested(pair, offline, reference, options, cases, rules, seed)
    about = facts(pair, reference, cases, options, seed)
    place = Folder(folder, replace(index, facts=about), cases, shard_size)
    place.add_weights(arrays)
    done = _record_cases(cases, Live(reference, seed), pair, rules, place, seed, progress)
    index = place.complete(pair.unexercised(reference, done))
    return Recording(folder, len(cases), place.kept, sum(shard.nbytes for shard in index.shards))


def _record_cases(
    cases: Sequence[Case],
    live: Live,
    pair: Pair,
    rules: Options,
    place: Folder,
    seed: int,
    progress: Progress,
) -> list[Case]:
    """Record those that the folder lacks; all with the arguments that the earlier ones decide on.

    Raises:
        InputError: none calls a module that was asked for.
    """
    outputs: dict[str, Mapping[str, Any]] = {}
    done: list[Case] = []
    shown = False
    for case in cases:
        progress.title(case.name if not case.path else f"{case.name} {case.path}")
        # what it returned before is recorded too, not taken for granted
        case = replace(case, returned_from=None)
        if case.args_from is not None:
            case = replace(case, args=case.args_from(outputs), args_from=None)
        done.append(case)
        choice = scope_of(
            case, live.paths(), (), only=rules.only, depth=rules.depth, rename=pair.rename
        )
        stored = place.found(case)
        if stored is not None:
            outputs[case.name] = place.outputs(stored)
        else:
            with seeded(seed), Store() as store:
                made = record_case(case, live, pair, choice, store, progress)
                stored = place.add(made.stored, made.arrays)
            outputs[case.name] = made.outputs
        shown |= choice.whole or len(stored.calls) > 1
    if not shown:
        chosen = ", ".join(rules.only)
        raise InputError(f"only: these inputs call no module that {chosen!r} matches")
    return done


def _check_names(cases: Sequence[Case]) -> None:
    counts = Counter((case.name, case.path) for case in cases)
    for (name, path), count in counts.items():
        if count > 1:
            raise InputError(f"{count} cases of module {path!r} are named {name!r}; rename them")
