"""Run the reference once and write a golden trace of it, case by case.

A recording that was killed goes on with the first case that is not whole in the folder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError
from parity.core.globs import path_name
from parity.core.lock import one_at_a_time
from parity.core.pair import Case, Pair, PairOptions
from parity.core.store import Store
from parity.host.progress import Progress
from parity.options.arguments import check_choice, check_run, check_sequences
from parity.options.options import Options
from parity.options.scope import needed, scope_of
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


@one_at_a_time
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
    check_run(seed, depth, None)
    options = pair.resolved(options)
    if pair.offline is None:
        raise InputError(NOT_OFFLINE.format(pair.name))
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        progress = progress or Progress()
        progress.stage("making the reference")
        reference = pair.make_torch(options, seed)
        live = Live(reference, seed)
        progress.stage("making the inputs")
        scope, paths = Options(only=tuple(only), depth=depth, rename=pair.rename), [*live.modules()]
        check_choice(paths, scope)
        cases = needed(scope.only, paths, pair.cases(reference, options, seed))
        _check_names(cases)
        progress.stage("writing the weights")
        index, arrays = requested(pair, reference, options, cases, scope, seed)
        place = Folder(folder, index, cases, shard_size)
        place.add_weights(arrays)
        done = _record_cases(cases, live, pair, scope, place, progress)
        index = place.complete(pair.unexercised(reference, done))
    return Recording(folder, len(cases), place.kept, sum(shard.nbytes for shard in index.shards))


def _record_cases(
    cases: Sequence[Case],
    live: Live,
    pair: Pair,
    options: Options,
    place: Folder,
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
        scope = scope_of(case, live.modules().keys(), (), options)
        stored = place.found(case)
        if stored is not None:
            outputs[case.name] = place.outputs(stored)
        else:
            with live.seeded(), Store() as store:
                found, outputs[case.name], arrays = record_case(
                    case, live, pair, scope, store, progress
                )
                stored = place.add(found, arrays)
        shown |= scope.whole or len(stored.calls) > 1
    if not shown:
        chosen = ", ".join(map(path_name, options.only))
        raise InputError(f"only: these inputs call no module that {chosen!r} matches")
    return done


def _check_names(cases: Sequence[Case]) -> None:
    counts = Counter((case.name, case.path) for case in cases)
    for (name, path), count in counts.items():
        if count > 1:
            raise InputError(f"{count} cases of module {path!r} are named {name!r}; rename them")
