"""The folder of a trace while it is recorded.

Files that a killed recording left whole are kept, others are removed in the end.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError
from parity.core.pair import Case
from parity.core.store import Store
from parity.run.inputs import root_outputs
from parity.traces.index import NAME, Index, StoredCase, read_index, write_index
from parity.traces.shards import PATTERN, Reader, Shard, ToWrite, problem, write
from parity.traces.trace import adopted

ELSEWHERE = "choose another --out, or remove it"


class Folder:
    """Takes the weights, then case after case; each is whole in the folder, or not in its index."""

    def __init__(self, path: Path, index: Index, cases: Sequence[Case], shard_size: int) -> None:
        """Begin the trace `index` of `cases`, or go on with it.

        Raises:
            InputError: the folder has another trace, or files that are named like one's.
        """
        before = _before(path, index)
        used = {shard.name for shard in before.shards}
        names = (f"{number:05d}.safetensors" for number in itertools.count())
        self._names = (name for name in names if name not in used)
        self._path, self._size = path, shard_size
        found = {case.key: case for case in before.cases if self._whole(case.shards)}
        self._cases = {(case.name, case.path): found.get((case.name, case.path)) for case in cases}
        self._index = replace(index, weights=before.weights if self._whole(before.weights) else ())
        self.kept = len(found)

    @property
    def index(self) -> Index:
        """Index of all that the folder holds, in the order of the cases."""
        return replace(self._index, cases=tuple(filter(None, self._cases.values())))

    def found(self, case: Case) -> StoredCase | None:
        """The case, if it is there."""
        return self._cases[case.name, case.path]

    def outputs(self, case: StoredCase) -> Mapping[str, Any]:
        """Outputs of the called module in a case that is there."""
        with Store() as store:
            trace = adopted(case.calls, case.modules, Reader(self._path, case.shards), store)
            return root_outputs(trace.calls[-1], store)

    def add_weights(self, arrays: ToWrite) -> None:
        """Write the weights that are not there yet."""
        if not self._index.weights:
            self._index = replace(self._index, weights=self._written(arrays))

    def add(self, case: StoredCase, arrays: ToWrite) -> StoredCase:
        """Write a case."""
        made = self._cases[case.key] = replace(case, shards=self._written(arrays))
        write_index(self._path, self.index)
        return made

    def complete(self, gaps: Sequence[str]) -> Index:
        """Write the whole index, and remove what it does not name."""
        self._index = replace(self._index, gaps=tuple(gaps))
        index = replace(self.index, complete=True)
        write_index(self._path, index)
        names = {shard.name for shard in index.shards}
        for path in self._path.iterdir():
            name = path.name.removeprefix(".").removesuffix(".partial")
            if PATTERN.fullmatch(name) and path.name not in names:
                path.unlink()
        return index

    def _written(self, arrays: ToWrite) -> tuple[Shard, ...]:
        return write(self._path, self._names, arrays, self._size)

    def _whole(self, shards: Sequence[Shard]) -> bool:
        return not any(problem(self._path, shard) for shard in shards)


def _before(folder: Path, index: Index) -> Index:
    """The index of an earlier recording of the same in the folder, or this one, written there."""
    if not (folder / NAME).exists():
        others = [path.name for path in folder.iterdir() if PATTERN.fullmatch(path.name)]
        if others:
            raise InputError(
                f"{folder}: has {min(others)}, named like a file of a trace, and no {NAME};"
                f" {ELSEWHERE}"
            )
        write_index(folder, index)  # from now on the files in the folder are this trace's
        return index
    try:
        before = read_index(folder)
    except InputError as error:
        raise InputError(f"{error}; {ELSEWHERE}") from error
    asked, had = (
        {"pair": x.pair, "only": x.only, "depth": x.depth, "tensors": x.tensors, **x.request}
        for x in (index, before)
    )
    if differ := ", ".join(name for name in asked if had.get(name) != asked[name]):
        raise InputError(f"{folder}: has a trace of something else ({differ} differ); {ELSEWHERE}")
    return before
