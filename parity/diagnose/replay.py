"""A call of the reference made again in float64, with some of its operations changed.

Only the module's local code runs: the calls inside it return what they returned before.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from parity.capture.torch import Method, to_numpy
from parity.core.arrays import Array, as_read, comparable
from parity.core.calls import Call, LeafMatch, Match
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.force.common import Recording, Sides, within
from parity.force.torch import ChangedArguments, Mode, Tensors, force_reference, to_array
from parity.weights.weight_map import in_order_of_ref

Result = Mapping[tuple[int, str], Array]
"""Outputs of a call, by (its order, leaf), and its child inputs, by (the child's order, leaf).

A tap in its code is a child to which the tapped value is passed."""

SIGNATURES = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"),
                    ("input", "weight", "bias", "stride", "padding", "dilation", "groups")),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
                    ("input", "weight", "bias", "stride", "padding", "output_padding", "groups",
                     "dilation")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"),
                    ("input", "kernel_size", "stride", "padding", "ceil_mode",
                     "count_include_pad", "divisor_override")),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"),
                    ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode",
                     "return_indices")),
    "linear": ("input", "weight", "bias"),
    "gelu": ("input", "approximate"),
    "cat": ("tensors", "dim"),
    "concat": ("tensors", "dim"),
    "clamp": ("input", "min", "max"),
    "permute": ("input", "dims"),
    "transpose": ("input", "dim0", "dim1"),
    "flatten": ("input", "start_dim", "end_dim"),
    "softmax": ("input", "dim"),
}  # fmt: skip
"""Parameter names of operations that cannot be asked for them."""


@dataclass(frozen=True)
class Operation:
    """One operation of a module's local code: `place` counts them in the order of execution."""

    place: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """Arguments by name, as far as names are known; else by position."""
        names = _names(self)
        positional = [*names, *(str(i) for i in range(len(names), len(self.args)))]
        return {**dict(zip(positional, self.args, strict=False)), **self.kwargs}

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
        unnamed = [given.pop(key) for key in list(given) if key.isdigit()]
        if not unnamed:
            # a method of tensors takes the tensor itself by position only
            leading = [given.pop(name) for name in _names(self)[: len(self.args)]]
            return self.function(*leading, **given)
        named = [given.pop(name) for name in _names(self) if name in given]
        return self.function(*named, *unnamed, **given)


Change = Callable[[Operation], Any]
"""The replaced result of an operation."""


class Replayer:
    """Repeats one matched call."""

    def __init__(
        self,
        module: torch.nn.Module,
        method: Method,
        match: Match,
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
    ) -> None:
        self.match, self.store = match, store
        self._module, self._method = module, method
        order = match.ref.order
        inside = within(calls, order)
        orders = {call.order for call in inside}
        self._recording = Recording([m for m in matches if m.ref.order in orders], inside, store)

    def run(
        self,
        mode: Mode | None = None,
        change: ChangedArguments = dict,
        tensors: Mapping[tuple[torch.nn.Module, str], Array] | None = None,
    ) -> Result:
        """Outputs of the call, and its child inputs.

        `tensors` stand in for parameters and buffers, by module and name.

        Raises:
            RuntimeError: the changed operation does not fit.
        """
        found: dict[tuple[int, str], Array] = {}
        own = self.match.ref.order

        def heard(match: Match, passed: Tensors, outputs: Tensors) -> None:
            if match.ref.order == own:
                found.update(_arrays(own, outputs, match.outputs))
            elif match.parent == own:
                found.update(_arrays(match.ref.order, passed, match.inputs))
                if match.ref.tapped:
                    found.update(_arrays(match.ref.order, outputs, match.outputs))

        with _holding(tensors or {}):
            problem = force_reference(
                self._module, self._method, self._recording, heard, {own}, mode, change
            )
        if problem:
            raise RuntimeError(problem)
        return found

    def operations(self) -> list[Operation]:
        """The operations that the call makes by itself."""
        listing = Changed({})
        self.run(listing)
        return listing.seen


@contextmanager
def _holding(tensors: Mapping[tuple[torch.nn.Module, str], Array]) -> Iterator[None]:
    """Other values in parameters and buffers of modules."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for (module, name), values in tensors.items():
            groups: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            group = next(group for group in groups if name in group)
            kept.append((group, name, group[name]))
            tensor = torch.from_numpy(np.ascontiguousarray(values, np.float64))
            parameter = isinstance(group[name], torch.nn.Parameter)
            group[name] = torch.nn.Parameter(tensor, False) if parameter else tensor
        yield
    finally:
        for group, name, own in kept:
            group[name] = own


class Changed(Mode):
    """Replaces operations by place."""

    def __init__(self, replacements: Mapping[int, Change]) -> None:
        super().__init__()
        self._replacements = replacements
        self.seen: list[Operation] = []

    def __enter__(self) -> "Changed":
        self.seen.clear()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        operation = Operation(len(self.seen), _name(func), func, tuple(args), kwargs)
        self.seen.append(operation)
        change = self._replacements.get(operation.place)
        return func(*args, **kwargs) if change is None else change(operation)


def _name(function: Any) -> str:
    name: str = getattr(function, "__name__", str(function))
    return name.strip("_") if name.startswith("__") else name


def _names(operation: Operation) -> tuple[str, ...]:
    return SIGNATURES.get(operation.name) or _signature(operation.function)


@functools.cache
def _signature(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ("input",)


def port_values(
    lines: Sequence[Weight], sides: Sides, modules: Mapping[str, torch.nn.Module]
) -> tuple[dict[tuple[torch.nn.Module, str], Array], list[Weight]]:
    """The reference's tensors with the port's values, and the lines that say how."""
    tensors: dict[tuple[torch.nn.Module, str], Array] = {}
    told = []
    for line in lines:
        values = sides.value(line.nnx_name)
        found = None if values is None else in_order_of_ref(line, values)
        if found is not None:
            key = modules[line.path], line.name.rpartition(".")[2]
            tensors.setdefault(key, np.array(to_numpy(getattr(*key))))[found[1]] = found[0]
            told.append(line)
    return tensors, told


def _arrays(
    order: int, tensors: Tensors, leaves: Sequence[LeafMatch]
) -> dict[tuple[int, str], Array]:
    found = {}
    for leaf in leaves:
        tensor = tensors.get(leaf.ref.name)
        if tensor is not None and comparable(leaf):
            array = to_array(tensor, leaf.ref.moved)
            found[order, leaf.ref.name] = as_read(array, leaf.reading)
    return found
