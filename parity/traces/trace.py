"""A golden trace as it is read: its index, and its arrays once these are checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parity.core.arrays import Array, LazyArrays
from parity.core.calls import ModuleInfo
from parity.core.tensors import Tensor
from parity.traces.arrays import ArrayFolder
from parity.traces.index import Index, StoredCase, read_index


@dataclass(frozen=True)
class Golden:
    """A trace whose arrays are those that were recorded."""

    folder: Path
    index: Index
    arrays: ArrayFolder

    @property
    def cases(self) -> Mapping[tuple[str, str], StoredCase]:
        """The cases by their keys."""
        return {case.key: case for case in self.index.cases}

    @property
    def modules(self) -> Mapping[str, ModuleInfo]:
        """All modules of the reference by path."""
        return {info.path: info for info in self.index.modules}

    @property
    def tensors(self) -> list[Tensor]:
        """The reference's parameters and buffers, read when they are asked for."""
        return [
            Tensor(
                x.path,
                x.name,
                x.values.shape,
                partial(self.arrays.read, x.values),
                x.buffer,
                x.identity,
            )
            for x in self.index.tensors
        ]

    @property
    def state(self) -> Mapping[str, Array]:
        """The reference's state dict, read tensor by tensor."""
        state = self.index.state
        return LazyArrays(state, lambda name: self.arrays.read(state[name]))


def open_trace(folder: Path) -> Golden:
    """Read the index and check every array.

    Raises:
        InputError: there is no trace, it is of another version, or not what was recorded.
    """
    index, arrays = read_index(folder), ArrayFolder(folder)
    known = {(x.digest, x.dtype, x.nbytes): x for x in index.buffers}
    for buffer in known.values():
        arrays.read(buffer)
    return Golden(folder, index, arrays)
