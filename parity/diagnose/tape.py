"""One run of a call, kept operation by operation, so that a change costs what depends on it."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from parity.diagnose.parts import PARTS
from parity.diagnose.replay import Change, Operation, named
from parity.force.torch import Mode
from parity.lines.source import of_library
from parity.lines.torch_operations import Watched


@dataclass(frozen=True)
class Slot:
    """A tensor, by identity, as the operation at `place` leaves it."""

    place: int
    tensor: int


NOWHERE = Slot(-1, 0)
"""Where no operation puts anything."""


@dataclass(frozen=True)
class Step:
    """An operation that was made: what it was given, what it returned or wrote to, and where in
    the program of its parts it begins and ends.
    """

    operation: Operation
    result: Any
    given: frozenset[int]
    made: tuple[int, ...]
    storages: frozenset[int]
    parts: range


class Tape(Mode):
    """Keeps the operations of the block, while it is `active`.

    `watched` sees what they are made of.
    """

    def __init__(self, watched: Watched | None = None) -> None:
        super().__init__()
        self._watched = watched
        self._begin()

    def _begin(self) -> None:
        self.steps: list[Step] = []
        self.cost = 0.0
        """Operations that were made again, in units of those of the call."""
        self.numbers: dict[int, Slot] = {}
        """Where the values of the program of `watched` are."""
        self._places: dict[int, int] = {}
        self._given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._written: set[int] = set()
        self._unseen: set[int] = set()
        self._reach: dict[frozenset[int], list[Step]] = {}

    def __enter__(self) -> "Tape":
        self._begin()
        if self._watched is not None:
            self._watched.__enter__(2)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._watched is not None:
            self._watched.__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._watched is not None:
            self._watched.active = False
        if not self.active:
            return func(*args, **kwargs)
        if func in PARTS:
            super().__enter__()  # type: ignore[no-untyped-call]
            try:
                return PARTS[func](*args, **kwargs)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        given = _tensors((args, kwargs))
        for tensor in given:
            self._look(tensor)
        if self._watched is not None:
            self._watched.active = True
        line = _line(sys._getframe(1))
        operation = Operation(len(self.steps), named(func), func, tuple(args), kwargs, line)
        begin, before = self._parts(), [_version(tensor) for tensor in given]
        result = func(*args, **kwargs)
        now = zip(given, before, strict=True)
        written = [tensor for tensor, version in now if _version(tensor) != version]
        made, storages = [*_tensors(result), *written], {_storage(x) for x in given}
        self._written |= {_storage(tensor) for tensor in written}
        for tensor in made:
            self._places[id(tensor)] = operation.place
            self._versions[_storage(tensor)] = _version(tensor)
            if self._watched is not None:
                self.numbers[self._watched.number(tensor)] = self.slot(tensor)
        self.steps.append(
            Step(
                replace(operation, made=result),
                result,
                frozenset(map(id, given)),
                tuple(map(id, made)),
                frozenset(storages | {_storage(tensor) for tensor in made}),
                range(begin, self._parts()),
            )
        )
        return result

    def _parts(self) -> int:
        return 0 if self._watched is None else len(self._watched.program.operations)

    def _look(self, tensor: torch.Tensor) -> None:
        """Keep what comes from outside as it is now, and note what was written to unseen."""
        key, version = _storage(tensor), _version(tensor)
        if id(tensor) not in self._places and id(tensor) not in self._given:
            fixed = isinstance(tensor, torch.nn.Parameter)
            self._given[id(tensor)] = tensor, tensor if fixed else tensor.clone()
        if self._versions.setdefault(key, version) != version:
            self._unseen.add(key)

    def slot(self, tensor: torch.Tensor) -> Slot:
        """Where a tensor is that was made; of one that was given no operation is the place."""
        return Slot(self._places.get(id(tensor), -1), id(tensor))

    def after(self, parts: Collection[int]) -> list[int]:
        """The values made from the first operation on that has one of these parts."""
        first = next(
            (x.operation.place for x in self.steps if not set(x.parts).isdisjoint(parts)), 0
        )
        return [number for number, slot in self.numbers.items() if slot.place >= first]

    def like(self, parts: Collection[int]) -> frozenset[int]:
        """The places of the operations of these parts, and of others that their lines make, as in
        a loop.
        """
        made = [(x.operation.line, x.operation.name) for x in self.steps]
        own = {made[x.operation.place] for x in self.steps if not set(x.parts).isdisjoint(parts)}
        return frozenset(place for place, one in enumerate(made) if one in own)

    def reached(self, places: Collection[int]) -> list[Step]:
        """The operations that depend on those at some places, and these.

        Of a storage that is written to all are made again.
        """
        key = frozenset(places)
        if key not in self._reach:
            found, fresh, dirty, size = set(key), set[int](), set[int](), -1
            while size != len(found) + len(dirty):
                size = len(found) + len(dirty)
                for step in self.steps:
                    place = step.operation.place
                    if place in found or step.given & fresh or step.storages & dirty:
                        found.add(place)
                        fresh.update(step.made)
                        dirty |= step.storages & self._written
            self._reach[key] = [self.steps[place] for place in sorted(found)]
        return self._reach[key]

    def run(
        self, changes: Mapping[int, Change], slots: Collection[Slot]
    ) -> dict[Slot, torch.Tensor]:
        """What is in those of the slots that the changes reach.

        The code does what it did: what it looks at, such as a maximum, decides nothing anew.

        Raises:
            RuntimeError: the changes do not fit, or reach what is written to unseen.
        """
        steps, wanted = self.reached(changes), defaultdict(list)
        if any(step.storages & self._unseen for step in steps):
            raise RuntimeError("a call inside writes to what a change reaches")
        for slot in slots:
            wanted[slot.place].append(slot)
        dirty = {x for step in steps for x in step.storages & self._written}
        now = {x: y.clone() for x, (own, y) in self._given.items() if _storage(own) in dirty}
        found: dict[Slot, torch.Tensor] = {}
        last = max(wanted, default=-1)
        for step in steps:
            place = step.operation.place
            if place > last:
                break
            self.cost += 1 / len(self.steps)
            now.update(_made(step, changes.get(place), now))
            for slot in wanted[place]:
                value = now[slot.tensor]
                found[slot] = value.clone() if dirty else value
        return found


def _made(
    step: Step, change: Change | None, now: Mapping[int, torch.Tensor]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Tensors in the place of those that an operation returned, by their identity."""
    operation = step.operation
    args, kwargs = tree_map_only(
        torch.Tensor, lambda x: now.get(id(x), x), (operation.args, operation.kwargs)
    )
    operation = replace(operation, args=args, kwargs=kwargs)
    result = operation.result() if change is None else change(operation)
    for own, new in zip(tree_leaves(step.result), tree_leaves(result), strict=True):
        if isinstance(own, torch.Tensor) and isinstance(new, torch.Tensor):
            yield id(own), new
        elif isinstance(own, torch.Tensor):
            raise TypeError("no tensor in the place of one")


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _line(frame: FrameType | None) -> tuple[str, int]:
    """The user's deepest line on a stack."""
    while frame is not None and of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: torch.Tensor) -> int:
    """What tensors share that see each other's writes."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
