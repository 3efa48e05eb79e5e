"""The reference that runs: its modules in float64."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from parity.capture.restore_torch import kept_reference
from parity.capture.torch import Method, invoke, target, to_numpy
from parity.core.arrays import LazyArrays
from parity.core.calls import Call, Leaf, Match
from parity.core.exceptions import first_line
from parity.core.measurements import NOT_IN_FLOAT64
from parity.core.store import Store
from parity.core.tree import flatten, statics
from parity.force.common import Arrays, Listener, NotMeasured, Recording
from parity.force.roundings_torch import Roundings
from parity.force.torch import (
    Tensors,
    Widening,
    arguments64,
    force_reference,
    tensors_of,
    widened_modules,
)


@dataclass(frozen=True)
class TorchModules:
    """Modules of the reference by path, and what was called on the root of them: a `Float64`."""

    modules: Mapping[str, torch.nn.Module]
    method: Method

    def of(self, call: Call) -> tuple[torch.nn.Module, Method]:
        """The module of a call, and what was called on it."""
        return self.modules[call.path], self.method if call.parent == -1 else "__call__"

    def own(
        self, recording: Recording, listener: Listener, wanted: Collection[int], sample: int = 0
    ) -> Mapping[int, str]:
        """Run the whole once in float64, every call on its recorded inputs."""

        def listen(match: Match, inputs: Tensors, outputs: Tensors) -> None:
            received = _in_layout(inputs, match.ref.inputs)
            listener(match, received, _in_layout(outputs, match.ref.outputs))

        module = self.modules[recording.root.ref.path]
        run = partial(force_reference, module, self.method, recording, listen, wanted)
        if sample:  # kept out here: what is put back inside has the roundings
            with kept_reference(module), Roundings(sample):
                problem = run()
        else:
            problem = run()
        return {match.ref.order: problem for match in recording.matches} if problem else {}

    def whole(self, call: Call, store: Store) -> Arrays:
        """Run one module by itself, all of it in float64 for the time of the call."""
        module, method = self.of(call)
        try:
            with (
                torch.no_grad(),
                kept_reference(module, *statics(call.arguments)),
                widened_modules(module.modules()),
                Widening(),
            ):
                args, kwargs = arguments64(target(module, method), call, store)
                output = flatten(invoke(module, method, args, kwargs))
                return dict(_in_layout(tensors_of(output), call.outputs))
        except Exception as error:  # code written for float32 fails in ways of its own
            raise NotMeasured(f"{NOT_IN_FLOAT64}: {first_line(error)}") from error


def _in_layout(tensors: Tensors, leaves: Sequence[Leaf]) -> Arrays:
    moved = {leaf.name: leaf.moved for leaf in leaves}
    # a copy: it is measured later, and the model may write to its own in the meantime
    return LazyArrays(tensors, lambda x: to_numpy(tensors[x].clone(), moved.get(x, False)))
