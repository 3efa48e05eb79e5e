"""A golden trace as it is read: its index, and the arrays of its files once these are checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from parity.core.arrays import LazyArrays
from parity.core.calls import Call, Leaf, ModuleInfo, Trace
from parity.core.exceptions import InputError
from parity.core.store import Store
from parity.core.tensors import Tensor
from parity.traces.index import AGAIN, CALL, Index, StoredCall, StoredLeaf, read_index
from parity.traces.shards import Array, Form, Reader, problem


@dataclass(frozen=True)
class Golden:
    """A complete trace whose files are those that were recorded."""

    folder: Path
    index: Index
    reader: Reader

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
                x.form.shape,
                partial(self.reader.read, x.form),
                x.buffer,
                x.identity,
            )
            for x in self.index.tensors
        ]

    @property
    def state(self) -> Mapping[str, Array]:
        """The reference's state dict, read tensor by tensor."""
        forms = self.index.state
        return LazyArrays(forms, lambda name: self.reader.read(forms[name]))


def open_trace(folder: Path) -> Golden:
    """Read the index and check every file.

    Raises:
        InputError: there is no trace, it is of another version, incomplete, or not what was
            recorded.
    """
    index = read_index(folder)
    if not index.complete:
        raise InputError(
            f"{folder}: its recording has not ended; the same `parity record` command goes on"
        )
    for shard in index.shards:
        if why := problem(folder, shard):
            raise InputError(f"{why}; {AGAIN}")
    reader = Reader(folder, index.shards)
    _check_forms(folder, index, reader)
    return Golden(folder, index, reader)


def _check_forms(folder: Path, index: Index, reader: Reader) -> None:
    """Every array that the index names is in a file, and nowhere named as of another size."""
    known: dict[str, Form] = {}
    for form in index.forms:
        first = known.setdefault(form.digest, form)
        problem = ""
        if form.digest not in reader:
            problem = f"no file has array {form.digest}"
        elif (form.nbytes, form.dtype) != (first.nbytes, first.dtype):
            problem = f"array {form.digest} is named as {form.text} and as {first.text}"
        if problem:
            raise InputError(f"{folder}: {problem}; {AGAIN}")


def adopted(
    calls: Sequence[StoredCall], modules: Sequence[ModuleInfo], reader: Reader, store: Store
) -> Trace:
    """The recorded calls, with arrays that the store reads from the trace."""

    def leaf(one: StoredLeaf) -> Leaf:
        form = one.form
        if form is None:
            return Leaf(one.name, value=one.value)
        read = partial(reader.read, form)
        buffer = store.adopt(bytes.fromhex(form.digest), form.shape, form.dtype, read)
        return Leaf(one.name, buffer, moved=one.moved, sure=one.sure)

    found = tuple(
        Call(
            **{name: getattr(call, name) for name in CALL},
            order=order,
            inputs=tuple(map(leaf, call.inputs)),
            outputs=tuple(map(leaf, call.outputs)),
        )
        for order, call in enumerate(calls)
    )
    return Trace(found, {info.path: info for info in modules})
