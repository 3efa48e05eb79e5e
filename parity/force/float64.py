"""The reference at hand: its modules, and what they do in float64."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from parity.capture.torch import Method
from parity.core.calls import Call, Leaf, Match
from parity.core.exceptions import first_line
from parity.core.measurements import NOT_IN_FLOAT64
from parity.core.store import Store
from parity.force.common import Array, Arrays, Listener, NotMeasured
from parity.force.module64 import reference64, to_array
from parity.force.torch import Tensors, force_reference


@dataclass(frozen=True)
class TorchModules:
    """Modules of the reference by path, and what was called on the root of them: a `Float64`."""

    modules: Mapping[str, torch.nn.Module]
    method: Method

    def of(self, call: Call) -> tuple[torch.nn.Module, Method]:
        """The module of a call, and what was called on it."""
        return self.modules[call.path], self.method if call.parent == -1 else "__call__"

    def own(
        self,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        listener: Listener,
        wanted: Collection[int],
    ) -> Mapping[int, str]:
        """Run the whole once in float64, every call on its recorded inputs."""

        def heard(match: Match, handed: Tensors, outputs: Tensors) -> None:
            given = _InLayout(handed, match.ref.inputs)
            listener(match, given, _InLayout(outputs, match.ref.outputs))

        root = matches[-1].ref
        problem = force_reference(
            self.modules[root.path], self.method, matches, calls, store, heard, wanted,
            prefix=root.path,
        )  # fmt: skip
        return {match.ref.order: problem for match in matches} if problem else {}

    def whole(self, call: Call, store: Store) -> Arrays:
        """Run one module by itself, in a float64 copy."""
        try:
            return reference64(*self.of(call), call, store)
        except Exception as error:  # code written for float32 fails in ways of its own
            raise NotMeasured(f"{NOT_IN_FLOAT64}: {first_line(error)}") from error


class _InLayout(Mapping[str, Array]):
    """Tensors as arrays in the port's layout, each made when it is asked for."""

    def __init__(self, tensors: Tensors, leaves: Sequence[Leaf]) -> None:
        self._tensors = tensors
        self._moved = {leaf.name: leaf.moved for leaf in leaves}

    def __getitem__(self, name: str) -> Array:
        # a copy: it is measured later, and the model may write to its own in the meantime
        return to_array(self._tensors[name].clone(), self._moved.get(name, False))

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
