"""Run the reference once and write a golden trace of it, case by case.

A recording that was killed goes on with the first case that is not whole in the folder.
"""

import hashlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from parity.capture import torch as capture_torch
from parity.capture.restore_torch import seeded
from parity.core.exceptions import InputError
from parity.core.lock import alone
from parity.core.pair import Case, Offline, Pair, PairOptions
from parity.core.store import Store, digest
from parity.core.tree import flatten
from parity.host import environment
from parity.host.progress import Progress
from parity.options.arguments import check_choice, check_sequences
from parity.options.options import Options
from parity.options.scope import needed, scope_of
from parity.run.facts import facts
from parity.run.inputs import root_outputs
from parity.run.live import Live
from parity.traces.index import (
    NAME,
    NOT_OFFLINE,
    Index,
    StoredCase,
    StoredTensor,
    read_index,
    write_index,
)
from parity.traces.lock import locked
from parity.traces.plain import encode
from parity.traces.record_case import record_case
from parity.traces.shards import PATTERN, Array, Form, Reader, Shard, problem, write
from parity.traces.trace import adopted

SHARD_SIZE = 1 << 30


@dataclass(frozen=True)
class Recording:
    """What was written: of `cases` so many were there already, from a recording before."""

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
    tensors, state, arrays = _tensors(reference)
    settings = dict(offline.settings(reference))
    about = dict(environment.describe(seed, reference))
    index = Index(
        pair=pair.name,
        request={
            "seed": seed,
            "only": list(rules.only),
            "depth": rules.depth,
            "options": _digest({name: repr(value) for name, value in options.items()}),
            "tensors": [[one.path, one.name, one.form.digest] for one in tensors],
            "cases": [[case.name, case.path, _given(case)] for case in cases],
            "settings": _digest(settings),
            "code": _code(reference),
            "commit": about["commit"],
            "versions": dict(about["versions"]),
        },
        layout=dict(pair.layout),
        settings=settings,
        environment=about,
        facts=facts(pair, reference, cases, options, seed),
        only=rules.only,
        depth=rules.depth,
        modules=tuple(replace(info, path=path)
                      for path, info in capture_torch.modules(reference).items()),
        tensors=tensors,
        state=state,
        weights=(),
    )  # fmt: skip
    before = _before(folder, index)
    names = _free_names(before)
    if before is None:
        write_index(folder, index)  # from now on the files in the folder are this trace's
    if before and before.weights and _whole(folder, before.weights):
        index = replace(index, weights=before.weights)
    else:
        index = replace(index, weights=tuple(write(folder, names, arrays, shard_size)))
    found = (
        {case.key: case for case in before.cases if _whole(folder, case.shards)} if before else {}
    )
    kept = len(found)
    live = Live(reference, seed)
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
        key = (case.name, case.path)
        choice = scope_of(case, paths, (), only=rules.only, depth=rules.depth, rename=pair.rename)
        if key in found:
            shown |= choice.whole or len(found[key].calls) > 1
            outputs[case.name] = _outputs(folder, found[key])
            continue
        with seeded(seed), Store() as store:
            made = record_case(case, live, pair, choice, store, progress)
            files = write(folder, names, made.arrays, shard_size)
        shown |= choice.whole or len(made.stored.calls) > 1
        outputs[case.name] = made.outputs
        found[key] = replace(made.stored, shards=tuple(files))
        write_index(folder, replace(index, cases=_in_order(found, cases)))
    if not shown:
        chosen = ", ".join(rules.only)
        raise InputError(f"only: these inputs call no module that {chosen!r} matches")
    gaps = tuple(pair.unexercised(reference, done))
    index = replace(index, cases=_in_order(found, cases), gaps=gaps, complete=True)
    write_index(folder, index)
    _remove_others(folder, index)
    return Recording(folder, len(cases), kept, sum(shard.nbytes for shard in index.shards))


def _check_names(cases: Sequence[Case]) -> None:
    counts = Counter((case.name, case.path) for case in cases)
    for (name, path), count in counts.items():
        if count > 1:
            raise InputError(f"{count} cases of module {path!r} are named {name!r}; rename them")


def _in_order(
    found: Mapping[tuple[str, str], StoredCase], cases: Sequence[Case]
) -> tuple[StoredCase, ...]:
    keys = [(case.name, case.path) for case in cases]
    return tuple(found[key] for key in keys if key in found)


def _outputs(folder: Path, case: StoredCase) -> Mapping[str, Any]:
    """What the called module returned in a case that was recorded before."""
    with Store() as store:
        trace = adopted(case.calls, case.modules, Reader(folder, case.shards), store)
        return root_outputs(trace.calls[-1], store)


def _tensors(
    reference: torch.nn.Module,
) -> tuple[tuple[StoredTensor, ...], Mapping[str, Form], list[tuple[Form, Callable[[], Array]]]]:
    """The tensors of the modules, those of the state dict by name, and how to read both."""
    arrays: list[tuple[Form, Callable[[], Array]]] = []

    def form(read: Callable[[], Array]) -> Form:
        array = read()
        found = Form(digest(array).hex(), array.shape, array.dtype)
        arrays.append((found, read))
        return found

    identities: dict[int, int] = {}
    tensors = tuple(
        StoredTensor(
            one.path, one.name, one.buffer,
            identities.setdefault(one.identity, len(identities) + 1), form(one.read),
        )
        for one in capture_torch.named_tensors(reference)
    )  # fmt: skip
    state = {
        name: form(lambda value=value: capture_torch.to_numpy(value))  # type: ignore[misc]
        for name, value in reference.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    return tensors, state, arrays


def _before(folder: Path, index: Index) -> Index | None:
    """What an earlier recording of the same left in the folder."""
    elsewhere = "choose another --out, or remove it"
    if not (folder / NAME).exists():
        others = [path.name for path in folder.iterdir() if PATTERN.fullmatch(path.name)]
        if others:
            raise InputError(
                f"{folder}: has {min(others)}, named like a file of a trace, and no {NAME};"
                f" {elsewhere}"
            )
        return None
    try:
        before = read_index(folder)
    except InputError as error:
        raise InputError(f"{error}; {elsewhere}") from error
    same = {"pair": before.pair == index.pair} | {
        name: before.request.get(name) == asked for name, asked in index.request.items()
    }
    differ = ", ".join(name for name, alike in same.items() if not alike)
    if differ:
        raise InputError(f"{folder}: has a trace of something else ({differ} differ); {elsewhere}")
    return before


def _given(case: Case) -> str:
    """A digest of the arguments; of those that the cases before decide on, of none."""
    flat = flatten((case.args, dict(case.kwargs)))
    arrays = [
        capture_torch.to_numpy(array) if isinstance(array, torch.Tensor) else array
        for _, array in flat.arrays
    ]
    return _digest([encode(flat.skeleton), *(digest(array).hex() for array in arrays)])


def _code(reference: torch.nn.Module) -> str:
    """A digest of the files that the reference's classes are written in."""
    homes = {sys.modules.get(type(module).__module__) for module in reference.modules()}
    files = sorted({file for home in homes if (file := getattr(home, "__file__", None))})
    return _digest([hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _whole(folder: Path, shards: tuple[Shard, ...]) -> bool:
    return not any(problem(folder, shard) for shard in shards)


def _free_names(before: Index | None) -> Iterator[str]:
    """Names of files that no earlier recording of the same has used."""
    used = {shard.name for shard in before.shards} if before else set()
    numbers = (f"{number:05d}.safetensors" for number in itertools.count())
    return (name for name in numbers if name not in used)


def _remove_others(folder: Path, index: Index) -> None:
    """What recordings that were killed left behind."""
    names = {shard.name for shard in index.shards}
    for path in folder.iterdir():
        name = path.name.removeprefix(".").removesuffix(".partial")
        if PATTERN.fullmatch(name) and path.name not in names:
            path.unlink()
