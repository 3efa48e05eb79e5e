"""A golden trace as it is read: its index, and the arrays of its files once these are checked."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError
from parity.traces.index import AGAIN, Index, StoredCall, StoredLeaf, Wide
from parity.traces.read_index import read_index
from parity.traces.shards import Array, Form, Reader, problem
from parity.core.calls import Call, Leaf, ModuleInfo, Trace
from parity.core.store import Store
from parity.core.tensors import Tensor


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
                one.path, one.name, one.form.shape, _reading(self.reader, one.form), one.buffer,
                one.identity,
            )
            for one in self.index.tensors
        ]  # fmt: skip

    @property
    def state(self) -> Mapping[str, Array]:
        """The reference's state dict, read tensor by tensor."""
        return _State(self.reader, self.index.state)


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
    _check_cases(folder, index)
    for shard in index.shards:
        if why := problem(folder, shard):
            raise InputError(f"{why}; {AGAIN}")
    reader = Reader(folder, index.shards)
    _check_forms(folder, index, reader)
    return Golden(folder, index, reader)


def _check_cases(folder: Path, index: Index) -> None:
    """There is one at least, and none twice."""
    if not index.cases:
        raise InputError(f"{folder}: has no case; {AGAIN}")
    counts = Counter(case.key for case in index.cases)
    (name, path), most = counts.most_common(1)[0]
    if most > 1:
        raise InputError(f"{folder}: has {most} cases {name!r} of module {path!r}; {AGAIN}")


def _check_forms(folder: Path, index: Index, reader: Reader) -> None:
    """Every array that the index names is in a file, and nowhere named as of another size; what
    float64 adds has the size of what it is added to.
    """
    known: dict[str, Form] = {}
    for form in _forms(index):
        if form.digest not in reader:
            raise InputError(f"{folder}: no file has array {form.digest}; {AGAIN}")
        first = known.setdefault(form.digest, form)
        if (form.nbytes, form.dtype) != (first.nbytes, first.dtype):
            raise InputError(
                f"{folder}: array {form.digest} is named as {form.text} and as {first.text};"
                f" {AGAIN}"
            )

    for case in index.cases:
        for call in case.calls:
            for leaves, wide in ((call.outputs, call.own), (call.outputs, call.whole),
                                 (call.inputs, call.handed)):  # fmt: skip
                _check_wide(folder, leaves, wide)


def _check_wide(folder: Path, leaves: Sequence[StoredLeaf], wide: Wide) -> None:
    for leaf in leaves:
        more, to = wide.get(leaf.name), leaf.form
        if more is None or to is None:
            continue
        kind = "complex64" if to.dtype.kind == "c" else "float32"
        if more.shape != to.shape or more.dtype.name != kind:
            raise InputError(
                f"{folder}: {more.text} cannot be added to {to.text} of {leaf.name!r}; {AGAIN}"
            )


def _forms(index: Index) -> Iterator[Form]:
    yield from (tensor.form for tensor in index.tensors)
    yield from index.state.values()
    for case in index.cases:
        yield from case.given
        for call in case.calls:
            yield from (leaf.form for leaf in (*call.inputs, *call.outputs) if leaf.form)
            for wide in (call.own, call.handed, call.whole):
                yield from (form for form in wide.values() if form)


def adopted(
    calls: Sequence[StoredCall], modules: Sequence[ModuleInfo], reader: Reader, store: Store
) -> Trace:
    """The recorded calls, with arrays that the store reads from the trace."""

    def leaf(one: StoredLeaf) -> Leaf:
        form = one.form
        if form is None:
            return Leaf(one.name, value=one.value)
        read = _reading(reader, form)
        buffer = store.adopt(bytes.fromhex(form.digest), form.shape, form.dtype, read)
        return Leaf(one.name, buffer, moved=one.moved, sure=one.sure)

    return Trace(
        tuple(
            Call(
                path=call.path,
                kind=call.kind,
                method=call.method,
                number=call.number,
                order=order,
                parent=call.parent,
                inputs=tuple(map(leaf, call.inputs)),
                outputs=tuple(map(leaf, call.outputs)),
            )
            for order, call in enumerate(calls)
        ),
        {info.path: info for info in modules},
    )


def _reading(reader: Reader, form: Form) -> Any:
    def read() -> Array:
        return reader.read(form)

    return read


class _State(Mapping[str, Array]):
    def __init__(self, reader: Reader, forms: Mapping[str, Form]) -> None:
        self._reader, self._forms = reader, forms

    def __getitem__(self, name: str) -> Array:
        return self._reader.read(self._forms[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)
