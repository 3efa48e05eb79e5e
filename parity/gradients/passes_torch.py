"""One run of the reference with something at the boundary of each call: `Natural` and `Forced`.

At the boundary of each call its arrays are copied, which is the identity to autograd: there the
gradients are read, and in float64 what comes in from either side is replaced by what was recorded.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from parity.capture.recorder import bind, join
from parity.capture.torch import Method, invoke, target
from parity.core.arrays import Array
from parity.core.calls import Leaf, Match
from parity.core.metrics import rms
from parity.core.store import Buffer
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import NotMeasured, Recording, Turns, by_ref_leaf
from parity.force.torch import Forward, Replaced, replaced_forwards, to_array, widen
from parity.gradients.protocol import (
    Gradients,
    Key,
    Side,
    Wide,
    WideGradients,
    differentiable,
    owner,
    total,
)
from parity.gradients.roundings_torch import Jitter, Shake, leads_to, spreads_of

NO_GRADIENT = "not measured: the reference has no gradient"

Tensors = Sequence[torch.Tensor | None]


class Pass:
    """One run of the root in which something stands around the calls of `matches`."""

    def __init__(self, root: torch.nn.Module, recording: Recording) -> None:
        self.root, self.match, self.store = root, recording.root, recording.store
        self.prefix = self.match.ref.path
        self._paths = {module: join(self.prefix, path) for path, module in root.named_modules()}
        inner = {match.ref.order: match for match in recording.matches[:-1]}
        self._turns = Turns(inner, recording.calls)

    def around(self, match: Match, forward: Forward, given: Flat) -> Any:
        """Make a matched call."""
        raise NotImplementedError

    def run(self, method: Method, tensor: Callable[[Array, bool], torch.Tensor]) -> Flat:
        """Make the root call on a `tensor` of each recorded input, which may have been moved."""
        function, call = target(self.root, method), self.match.ref
        inputs = [(self.store.get(leaf.buffer), leaf.moved) for leaf in call.inputs if leaf.buffer]
        assert call.arguments is not None
        # copies: the call may write to them
        given = flatten(rebuild(call.arguments, [tensor(*one).clone() for one in inputs]))

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return invoke(self.root, method, args, kwargs)

        inner = [module for module in self._paths if module is not self.root]
        with replaced_forwards(inner, self._call):
            return flatten(self.around(self.match, forward, given))

    def _call(
        self, module: torch.nn.Module, forward: Forward, called: bool, args: Any, kwargs: Any
    ) -> Any:
        match = self._turns.next(self._paths[module]) if called else None
        if match is None:
            return forward(*args, **kwargs)
        return self.around(match, forward, flatten(bind(forward, args, kwargs)))


class Natural(Pass):
    """As it runs: the gradients are read where they pass."""

    def gradients(self, method: Method, seed: int) -> Gradients:
        """Those of all boundaries and parameters."""
        self._found: dict[Key, Buffer] = {}
        self._leaves: list[torch.Tensor] = []
        roots, given = self._start(self.run(method, as_tensor), np.random.default_rng(seed))
        named = dict(self.root.named_parameters())
        wanted = {name: one for name, one in named.items() if one.is_floating_point()}
        ends = [*wanted.values(), *self._leaves]
        values = torch.autograd.grad(roots, ends, given, allow_unused=True)
        for name, value in zip(wanted, values, strict=False):
            if value is not None:
                self._found[total(join(self.prefix, name))] = self.store.put(to_array(value, False))
        first = {id(one): name for name, one in named.items()}
        every = self.root.named_parameters(remove_duplicate=False)
        shared = {join(self.prefix, name): join(self.prefix, first[id(one)]) for name, one in every}
        return Gradients(self._found, shared)

    def _start(
        self, output: Flat, draw: np.random.Generator
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs with a gradient, and the gradient drawn for each of them."""
        roots, given = [], []
        moved = {leaf.name: leaf.moved for leaf in self.match.ref.outputs}
        for name, tensor in output.arrays:
            if not isinstance(tensor, torch.Tensor) or not _has_gradient(tensor):
                continue
            drawn = _normal(draw, tensor)
            key: Key = (self.match.ref.order, "output", name)
            self._found[key] = self.store.put(to_array(drawn, moved[name]))
            if tensor.requires_grad:
                roots.append(tensor)
                given.append(drawn)
        if not roots:
            raise NotMeasured(f"{NO_GRADIENT}: none of its outputs depends on anything by autograd")
        return roots, given

    def around(self, match: Match, forward: Forward, given: Flat) -> Any:
        """Make it between copies of what goes in and out."""
        arrays = [self._read(match, "input", name, own) for name, own in given.arrays]
        passed = Replaced(given, arrays)
        output = passed.call(forward)
        returned = [self._read(match, "output", name, own) for name, own in output.arrays]
        return passed.result(output, returned)

    def _read(self, match: Match, side: Side, name: str, own: Any) -> Any:
        """A copy of an array, through which its gradient passes and is kept."""
        if not isinstance(own, torch.Tensor) or not _has_gradient(own):
            return own
        if not torch.is_grad_enabled() or (side == "output" and not own.requires_grad):
            return own
        if not own.requires_grad:  # a constant of the parent: to the call it is an input
            own = own.detach().requires_grad_(True)
            self._leaves.append(own)
        copy = own.clone()
        leaves = match.ref.inputs if side == "input" else match.ref.outputs
        leaf = next((leaf for leaf in leaves if leaf.name == name), None)
        if leaf is not None:
            key: Key = (match.ref.order, side, name)
            put, moved = self.store.put, leaf.moved
            copy.register_hook(lambda one: self._found.update({key: put(to_array(one, moved))}))
        return copy


@dataclass
class _Frame:
    """The local code of one open call: where gradients start, with the `order` of the call at whose
    boundary that is, and where they end.
    """

    match: Match
    roots: list[tuple[torch.Tensor, Buffer | None, bool, int]] = field(default_factory=list)
    ends: list[tuple[Key, bool, torch.Tensor]] = field(default_factory=list)


class Forced(Pass):
    """In float64, with what was recorded at every boundary, on either side of it."""

    def __init__(
        self, root: torch.nn.Module, recording: Recording, recorded: Gradients, shake: Shake
    ) -> None:
        super().__init__(root, recording)
        self._recorded, self._shake = recorded, shake
        self._frames: list[_Frame] = []
        self._found: dict[Key, Wide] = {}
        self._flows: defaultdict[Key, list[int]] = defaultdict(list)
        self._sums: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self._called = {match.ref.path for match in recording.matches}
        self._draw = torch.Generator().manual_seed(0)
        self._jitter = Jitter()

    def gradients(
        self, method: Method, weights: Mapping[str, Sequence[torch.Tensor]]
    ) -> WideGradients:
        """Those of all boundaries, and of the float64 copies of parameters, by name."""
        self._weights = [(name, one) for name, copies in weights.items() for one in copies]
        for name, one in self._weights:
            self._add(total(name), torch.zeros_like(one), None)
        self._frames.append(_Frame(self.match))  # of the caller, which is not differentiated
        with self._jitter.keeping():
            self.run(method, widen)
        for key, (value, spread) in self._sums.items():
            self._put(key, False, value, spread)
        return WideGradients(self._found, self._flows)

    def around(self, match: Match, forward: Forward, given: Flat) -> Any:
        """Make it on what was recorded, run it backward, and return what was recorded."""
        parent, frame, order = self._frames[-1], _Frame(match), match.ref.order
        leaves = by_ref_leaf(match.inputs)
        for name, own in given.arrays:
            if name in leaves and own.requires_grad:
                start = self._recorded.of.get((order, "input", name))
                parent.roots.append((own.clone(), start, leaves[name].moved, order))
        passed = Replaced(given, self._forced(frame, "input", match, given))
        self._frames.append(frame)
        try:
            output = passed.call(forward)
        finally:
            self._frames.pop()
        self._start(match, frame, output)
        self._finish(frame)
        return passed.result(output, self._forced(parent, "output", match, output))

    def _forced(self, frame: _Frame, side: Side, match: Match, flat: Flat) -> list[Any]:
        """Recorded arrays in float64, at which gradients of the code of `frame` end."""
        leaves = by_ref_leaf(match.inputs if side == "input" else match.outputs)
        arrays = []
        for name, own in flat.arrays:
            leaf = leaves.get(name)
            if leaf is None or leaf.buffer is None:
                # a copy: it may be written to
                arrays.append(own.detach().clone() if isinstance(own, torch.Tensor) else own)
                continue
            value = self._value(leaf, leaf.buffer)
            if differentiable(leaf):
                value = _end(frame, (match.ref.order, side, name), leaf.moved, value)
            arrays.append(value)
        return arrays

    def _value(self, leaf: Leaf, buffer: Buffer) -> torch.Tensor:
        """A recorded array in float64."""
        array = self.store.get(buffer)
        value = widen(array, leaf.moved)
        if not differentiable(leaf):
            return value
        return self._shake(value, as_tensor(array[:0] if array.ndim else array, False).dtype)

    def _start(self, match: Match, frame: _Frame, output: Flat) -> None:
        """Start gradients at the outputs of a call."""
        leaves = by_ref_leaf(match.outputs)
        for name, own in output.arrays:
            if name in leaves and own.requires_grad:
                start = self._recorded.of.get((match.ref.order, "output", name))
                frame.roots.append((own, start, leaves[name].moved, match.ref.order))

    def _finish(self, frame: _Frame) -> None:
        """Run the local code of a call backward: nothing else hangs on it."""
        self._note_flows(frame)
        values, spreads = self._backward(frame)
        for (key, moved, end), value, spread in zip(frame.ends, values, spreads, strict=False):
            self._put(key, moved, torch.zeros_like(end) if value is None else value, spread)
        rest, call = len(frame.ends), frame.match.ref
        for (name, _), value, spread in zip(
            self._weights, values[rest:], spreads[rest:], strict=True
        ):
            if value is not None:
                self._add(total(name), value, spread)
                if owner(name, self._called) != call.path:
                    self._add((call.order, "tensor", name), value, spread)

    def _note_flows(self, frame: _Frame) -> None:
        for root, _, _, to in frame.roots:
            led = leads_to(root, [end for _, _, end in frame.ends])
            for (key, _, _), does in zip(frame.ends, led, strict=True):
                if does and to not in self._flows[key]:
                    self._flows[key].append(to)

    def _backward(self, frame: _Frame) -> tuple[Tensors, Tensors]:
        """Gradients at the ends of a frame and of all parameters, and their roundings."""
        ends = [*(end for _, _, end in frame.ends), *(one for _, one in self._weights)]
        roots = [(root, start, moved) for root, start, moved, _ in frame.roots if start is not None]
        none = [None] * len(ends)
        if not roots or not ends:
            return none, none
        outputs = [root for root, _, _ in roots]
        given = [widen(self.store.get(start), moved) for _, start, moved in roots]
        plain = not self._shake.number
        values = torch.autograd.grad(outputs, ends, given, allow_unused=True, retain_graph=plain)
        if not plain:
            return values, none
        return values, spreads_of(outputs, ends, given, values, self._draw, self._jitter)

    def _add(self, key: Key, value: torch.Tensor, spread: torch.Tensor | None) -> None:
        spread = torch.zeros_like(value) if spread is None else spread
        before = self._sums.get(key)
        self._sums[key] = (
            (value, spread) if before is None else (before[0] + value, before[1] + spread)
        )

    def _put(self, key: Key, moved: bool, value: torch.Tensor, spread: torch.Tensor | None) -> None:
        size = 0.0 if spread is None else rms(to_array(spread, False))
        self._found[key] = Wide(self.store.put(to_array(value, moved)), size)


def _end(frame: _Frame, key: Key, moved: bool, value: torch.Tensor) -> torch.Tensor:
    """An array whose gradient is wanted, as it may be written to."""
    leaf = value.requires_grad_(True)
    frame.ends.append((key, moved, leaf))
    return leaf.clone()


def as_tensor(array: Array, moved: bool) -> torch.Tensor:
    """A recorded array as a tensor of its own type in PyTorch's layout."""
    if array.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    # in memory as users have it: the backward kernel of a group norm loses digits channels last
    return tensor.movedim(-1, 1).contiguous() if moved else tensor


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _normal(draw: np.random.Generator, like: torch.Tensor) -> torch.Tensor:
    """N(0, 1) of a shape, in its type."""
    drawn = torch.from_numpy(np.asarray(draw.standard_normal(tuple(like.shape))))
    if like.is_complex():
        drawn = drawn + 1j * torch.from_numpy(np.asarray(draw.standard_normal(tuple(like.shape))))
    return drawn.to(like.dtype)
