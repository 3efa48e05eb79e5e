"""A golden trace as it is read: its index, and the arrays of its files once these are checked."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError
from parity.traces.index import AGAIN, Index, Sketch, StoredCall, StoredLeaf, Wide
from parity.traces.read_index import read_index
from parity.traces.sample import count
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
    """There is one at least, none twice, and none with sketches if the trace is not one of these:
    what is seen in part would pass for seen.
    """
    if not index.cases:
        raise InputError(f"{folder}: has no case; {AGAIN}")
    counts = Counter(case.key for case in index.cases)
    (name, path), most = counts.most_common(1)[0]
    if most > 1:
        raise InputError(f"{folder}: has {most} cases {name!r} of module {path!r}; {AGAIN}")
    if not index.statistics and any(case.sketches for case in index.cases):
        raise InputError(f"{folder}: has sketches, and is no trace of statistics; {AGAIN}")


def _check_forms(folder: Path, index: Index, reader: Reader) -> None:
    """Every array that the index names is in a file, or sketched, and nowhere named as of another
    size; what float64 adds has the size of what it is added to.
    """
    known: dict[str, Form] = {}
    for form, sketches in _forms(index):
        if form.digest not in reader and form.digest not in sketches:
            raise InputError(f"{folder}: no file has array {form.digest}; {AGAIN}")
        first = known.setdefault(form.digest, form)
        if (form.nbytes, form.dtype) != (first.nbytes, first.dtype):
            raise InputError(
                f"{folder}: array {form.digest} is named as {form.text} and as {first.text};"
                f" {AGAIN}"
            )

    for case in index.cases:
        for call in case.calls:
            _check_kept(folder, case.sketches, (*call.inputs, *call.outputs))
            for leaves, wide in ((call.outputs, call.own), (call.outputs, call.whole),
                                 (call.inputs, call.handed)):  # fmt: skip
                _check_wide(folder, case.sketches, leaves, wide)


def _check_kept(folder: Path, sketches: Mapping[str, Sketch], leaves: Sequence[StoredLeaf]) -> None:
    """What was kept of an array are as many entries as would be kept of it here."""
    for leaf in leaves:
        sketch = sketches.get(leaf.form.digest) if leaf.form else None
        if leaf.form is None or sketch is None:
            continue
        entries = count(math.prod(leaf.form.shape))
        if (sketch.kept.shape, sketch.kept.dtype) != ((entries,), leaf.form.dtype):
            raise InputError(
                f"{folder}: of {leaf.form.text} {sketch.kept.text} was kept, expected {entries}"
                f" entries of it; {AGAIN}"
            )


def _check_wide(
    folder: Path, sketches: Mapping[str, Sketch], leaves: Sequence[StoredLeaf], wide: Wide
) -> None:
    for leaf in leaves:
        more = wide.get(leaf.name)
        if more is None or leaf.form is None:
            continue
        sketch = sketches.get(leaf.form.digest)
        to = leaf.form if sketch is None else sketch.kept
        kind = "complex64" if to.dtype.kind == "c" else "float32"
        if more.shape != to.shape or more.dtype.name != kind:
            raise InputError(
                f"{folder}: {more.text} cannot be added to {to.text} of {leaf.name!r}; {AGAIN}"
            )


def _forms(index: Index) -> Iterator[tuple[Form, Mapping[str, Sketch]]]:
    """Each with the sketches that may stand in its place."""
    whole: Mapping[str, Sketch] = {}
    yield from ((tensor.form, whole) for tensor in index.tensors)
    yield from ((form, whole) for form in index.state.values())
    for case in index.cases:
        yield from ((form, whole) for form in case.given)
        yield from ((sketch.kept, whole) for sketch in case.sketches.values())
        for call in case.calls:
            leaves = (*call.inputs, *call.outputs)
            yield from ((leaf.form, case.sketches) for leaf in leaves if leaf.form)
            for wide in (call.own, call.handed, call.whole):
                yield from ((form, whole) for form in wide.values() if form)


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
