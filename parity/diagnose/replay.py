"""A call of the reference made again in float64, with some of its operations changed.

Only the module's local code runs: the calls inside it return what they returned before.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.overrides

from parity.capture.torch import to_numpy
from parity.core.arrays import Array, as_read, comparable
from parity.core.calls import LeafMatch, Match
from parity.core.tensors import Weight
from parity.diagnose.case_record import CaseRecord
from parity.force.common import Recording, Sides, within
from parity.force.float64 import TorchModules
from parity.force.torch import (
    ChangedArguments,
    Mode,
    Tensors,
    force_reference,
    replaced_forwards,
)
from parity.weights.weight_map import in_order_of_ref

Key = tuple[int, str]
Result = Mapping[Key, Array]
"""Outputs of a call, by (its order, leaf), and its child inputs, by (the child's order, leaf).

A tap in its code is a child to which the tapped value is passed."""

Note = Callable[[Key, torch.Tensor, LeafMatch], None]
"""Callback for each array of a result, with the tensor that it was."""


@dataclass(frozen=True)
class Operation:
    """One operation of a module's local code: `place` counts them in the order of execution."""

    place: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: tuple[str, int] = ("", 0)
    """File and number of the user's line that makes it."""
    made: Any = None
    """What it returned."""

    @functools.cached_property
    def _positional(self) -> tuple[str, ...]:
        """Names of the positional arguments, as far as they are known; else their positions."""
        names = _names(self.function)
        return (*names, *map(str, range(len(names), len(self.args))))[: len(self.args)]

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """Arguments by name, or by position."""
        return {**dict(zip(self._positional, self.args, strict=True)), **self.kwargs}

    @property
    def subject(self) -> torch.Tensor:
        """The first argument: what it works on."""
        tensor: torch.Tensor = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return tensor

    def result(self) -> Any:
        """The result of the unchanged operation."""
        return self.function(*self.args, **self.kwargs)

    def again(self, **changes: Any) -> Any:
        """Make the operation with other arguments."""
        given = {**self.given, **changes}
        # a method of tensors takes the tensor itself by position only
        positional = [given.pop(name) for name in self._positional]
        return self.function(*positional, **given)


Change = Callable[[Operation], Any]
"""The replaced result of an operation."""


@dataclass(frozen=True)
class Replayer:
    """Repeats one matched call of a reference that runs."""

    record: CaseRecord
    match: Match

    @property
    def reference(self) -> TorchModules:
        """The modules of the reference."""
        assert isinstance(self.record.sides.reference, TorchModules)
        return self.record.sides.reference

    def run(
        self,
        mode: Mode | None = None,
        change: ChangedArguments = dict,
        tensors: Mapping[tuple[torch.nn.Module, str], Array] | None = None,
        note: Note | None = None,
        without: str | None = None,
    ) -> Result:
        """Outputs of the call, and its child inputs, each of which `note` hears of.

        `tensors` stand in for parameters and buffers, by module and name. The module at the path
        `without` returns what it is given.

        Raises:
            RuntimeError: the changed operation does not fit.
        """
        found: dict[Key, Array] = {}
        own = self.match.ref.order

        def keep(order: int, tensors: Tensors, leaves: Sequence[LeafMatch]) -> None:
            for leaf in leaves:
                tensor = tensors.get(leaf.ref.name)
                if tensor is not None and comparable(leaf):
                    found[order, leaf.ref.name] = laid(tensor, leaf)
                    if note is not None:
                        note((order, leaf.ref.name), tensor, leaf)

        def heard(match: Match, passed: Tensors, outputs: Tensors) -> None:
            if match.ref.order == own:
                keep(own, outputs, match.outputs)
            elif match.parent == own:
                keep(match.ref.order, passed, match.inputs)
                if match.ref.tapped:
                    keep(match.ref.order, outputs, match.outputs)

        record, (module, method) = self.record, self.reference.of(self.match.ref)
        calls = within(record.calls, own)
        orders = {call.order for call in calls}
        matches = [match for match in record.matches if match.ref.order in orders]
        recording = Recording(matches, calls, record.store)
        left_out = [] if without is None else [self.reference.modules[without]]
        with _holding(tensors or {}), replaced_forwards(left_out, _returned):
            problem = force_reference(module, method, recording, heard, {own}, mode, change)
        if problem:
            raise RuntimeError(problem)
        return found


def _returned(module: torch.nn.Module, forward: Any, called: bool, args: Any, kwargs: Any) -> Any:
    return next(iter((*args, *kwargs.values()))).clone()


@contextmanager
def _holding(tensors: Mapping[tuple[torch.nn.Module, str], Array]) -> Iterator[None]:
    """Other values in parameters and buffers of modules."""
    held = [getattr(module, name) for module, name in tensors]
    kept = [tensor.data for tensor in held]
    try:
        for tensor, values in zip(held, tensors.values(), strict=True):
            tensor.data = torch.from_numpy(np.ascontiguousarray(values, np.float64))
        yield
    finally:
        for tensor, own in zip(held, kept, strict=True):
            tensor.data = own


def named(function: Any) -> str:
    """The name of an operation, as probes know it."""
    name: str = getattr(function, "__name__", str(function))
    return name.strip("_") if name.startswith("__") else name


@functools.cache
def _names(function: Any) -> tuple[str, ...]:
    """Names of its parameters; of one in C, those that PyTorch tells whoever overrides it."""
    for known in (function, torch.overrides.get_testing_overrides().get(function)):
        try:
            parameters = inspect.signature(known).parameters.values()  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            return tuple(p.name for p in parameters)
    return ("input",)


def port_values(
    lines: Sequence[Weight], sides: Sides, modules: Mapping[str, torch.nn.Module]
) -> tuple[dict[tuple[torch.nn.Module, str], Array], list[Weight]]:
    """The reference's tensors with the port's values, and the lines that say how."""
    tensors: dict[tuple[torch.nn.Module, str], Array] = {}
    told = []
    for line in lines:
        values = sides.value(line.nnx_name)
        # a port may read another order of axes, or rows that take turns; what is tried is one that
        # does not
        read = replace(line, transform="")
        read = replace(read, of="", at="") if line.in_turns and line.transform else read
        found = None if values is None else in_order_of_ref(read, values)
        if found is not None:
            key = modules[line.path], line.name.rpartition(".")[2]
            own = tensors.setdefault(key, to_numpy(getattr(*key)))
            tensors[key] = found[1].put(own, found[0])
            told.append(line)
    return tensors, told


def laid(tensor: torch.Tensor, leaf: LeafMatch) -> Array:
    """A tensor of the reference as the port's array lies."""
    return as_read(to_numpy(tensor, leaf.ref.moved), leaf.reading)
