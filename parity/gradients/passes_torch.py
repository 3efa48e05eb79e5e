"""One run of the reference with something at the boundary of each call: `Natural` and `Forced`.

At the boundary of each call its arrays are copied, which is the identity to autograd: there the
gradients are read, and in float64 what comes in from either side is replaced by what was recorded.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from parity.capture.recorder import bind, join, unbind
from parity.capture.torch import Method, invoke, target
from parity.core.arrays import Array
from parity.core.calls import Leaf, Match
from parity.core.metrics import rms
from parity.core.store import Buffer
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import NotMeasured, Recording, Turns, by_ref_leaf
from parity.force.torch import Forward, Replaced, replaced_forwards, to_array, widen
from parity.gradients.graph_torch import leads_to
from parity.gradients.protocol import (
    Asked,
    Gradients,
    Key,
    Side,
    Wide,
    WideGradients,
    differentiable,
    owner,
)
from parity.gradients.spread_torch import Jitter, spreads_of

NO_GRADIENT = "not measured: the reference has no gradient"


class Shake:
    """Changes numbers by a few roundings, as it is asked; if it is not, not at all."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        # what lies near a kink is on one side of it
        self._by = asked.by if asked.shaken % 2 else -asked.by
        self._draw = torch.Generator().manual_seed((asked.shaken + 1) // 2)

    def __call__(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor, shaken by roundings of a type."""
        if not self.asked.shaken:
            return tensor
        drawn = torch.randn(tensor.shape, generator=self._draw, dtype=torch.float64)
        return tensor * (1 + self._by * torch.finfo(dtype).eps / 2 * drawn)


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

    def run(self, method: Method, arrays: Sequence[torch.Tensor]) -> Flat:
        """What the root makes of these arrays in the place of those that it was given."""
        inner = [module for module in self._paths if module is not self.root]
        with replaced_forwards(inner, self._call):
            assert self.match.ref.arguments is not None
            given = rebuild(self.match.ref.arguments, arrays)
            args, kwargs = unbind(target(self.root, method), given)
            return flatten(invoke(self.root, method, args, kwargs))

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
        order = self.match.ref.order
        arrays, inputs = [], []
        for leaf in self.match.ref.inputs:
            if leaf.buffer is not None:
                tensor = as_tensor(self.store.get(leaf.buffer), leaf.moved)
                if _has_gradient(tensor):
                    inputs.append((leaf, tensor.requires_grad_(True)))
                    tensor = tensor.clone()
                arrays.append(tensor)
        output = self.run(method, arrays)
        draw = np.random.default_rng(seed)
        roots, given = [], []
        leaves = {leaf.name: leaf for leaf in self.match.ref.outputs}
        for name, tensor in output.arrays:
            if not isinstance(tensor, torch.Tensor) or not _has_gradient(tensor):
                continue
            one = _normal(draw, tensor)
            self._found[order, "output", name] = self._put(leaves[name], one)
            if tensor.requires_grad:
                roots.append(tensor)
                given.append(one)
        if not roots:
            raise NotMeasured(f"{NO_GRADIENT}: none of its outputs depends on anything by autograd")
        named = {n: p for n, p in self.root.named_parameters() if p.is_floating_point()}
        ends = [*(tensor for _, tensor in inputs), *named.values(), *self._leaves]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(
            roots, ends, given, allow_unused=True
        )
        for (leaf, _), gradient in zip(inputs, found, strict=False):
            if gradient is not None:
                self._found[order, "input", leaf.name] = self._put(leaf, gradient)
        tensors = {
            join(self.prefix, name): self.store.put(to_array(one, False))
            for name, one in zip(named, found[len(inputs) :], strict=False)
            if one is not None
        }
        first = {id(one): name for name, one in self.root.named_parameters()}
        every = self.root.named_parameters(remove_duplicate=False)
        shared = {join(self.prefix, name): join(self.prefix, first[id(one)]) for name, one in every}
        return Gradients(self._found, tensors, shared)

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
            copy.register_hook(lambda one: self._found.update({key: self._put(leaf, one)}))
        return copy

    def _put(self, leaf: Leaf, one: torch.Tensor) -> Buffer:
        return self.store.put(to_array(one, leaf.moved))


@dataclass
class _Frame:
    """The own code of one open call: from where gradients start, with the `order` of the call at
    whose boundary that is, and to where they go.
    """

    match: Match
    roots: list[tuple[torch.Tensor, Buffer | None, bool, int]] = field(default_factory=list)
    ends: list[tuple[Key, bool, torch.Tensor]] = field(default_factory=list)


class Forced(Pass):
    """In float64, with what was recorded at every boundary, on either side of it."""

    def __init__(
        self,
        root: torch.nn.Module,
        recording: Recording,
        recorded: Gradients,
        shake: Shake,
    ) -> None:
        super().__init__(root, recording)
        self._recorded, self._shake = recorded, shake
        self._frames: list[_Frame] = []
        self._found: dict[Key, Wide] = {}
        self._flows: defaultdict[Key, list[int]] = defaultdict(list)
        self._sums: dict[str, torch.Tensor] = {}
        self._spreads: dict[str, torch.Tensor] = {}
        self._users: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]] = {}
        self._called = {match.ref.path for match in recording.matches}
        self._draw = torch.Generator().manual_seed(0)
        self._jitter = Jitter() if shake.asked.inside else None

    def gradients(
        self, method: Method, weights: Mapping[str, Sequence[torch.Tensor]]
    ) -> WideGradients:
        """Those of all boundaries, and of the float64 copies of parameters, by name."""
        self._weights = [(name, one) for name, copies in weights.items() for one in copies]
        frame = _Frame(self.match)
        self._frames.append(frame)
        order = self.match.ref.order
        known = by_ref_leaf(self.match.inputs)
        arrays = []
        for leaf in self.match.ref.inputs:
            if leaf.buffer is not None:
                tensor = self._value(leaf, leaf.buffer)
                if leaf.name in known and differentiable(leaf):
                    tensor = _end(frame, (order, "input", leaf.name), leaf.moved, tensor)
                arrays.append(tensor)
        with nullcontext() if self._jitter is None else self._jitter.keeping():
            output = self.run(method, arrays)
        self._start(self.match, frame, output)
        self._finish(self._frames.pop())
        tensors = {
            name: Wide(self._put64(one), rms(to_array(self._spreads[name], False)))
            for name, one in self._sums.items()
        }
        users = {
            key: Wide(self._put64(one), rms(to_array(spread, False)))
            for key, (one, spread) in self._users.items()
        }
        return WideGradients(self._found, tensors, users, self._flows)

    def around(self, match: Match, forward: Forward, given: Flat) -> Any:
        """Make it on what was recorded, run it backward, and return what was recorded."""
        parent, frame, order = self._frames[-1], _Frame(match), match.ref.order
        leaves = by_ref_leaf(match.inputs)
        for name, own in given.arrays:
            if name in leaves and own.requires_grad:
                start = self._recorded.leaves.get((order, "input", name))
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
        """What was recorded, in float64, where gradients of the code of `frame` end."""
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
        """What was recorded, in float64."""
        array = self.store.get(buffer)
        value = widen(array, leaf.moved)
        if not differentiable(leaf):
            return value
        return self._shake(value, as_tensor(array[:0] if array.ndim else array, False).dtype)

    def _start(self, match: Match, frame: _Frame, output: Flat) -> None:
        """What arrives at the outputs of a call."""
        leaves = by_ref_leaf(match.outputs)
        for name, own in output.arrays:
            if name in leaves and own.requires_grad:
                start = self._recorded.leaves.get((match.ref.order, "output", name))
                frame.roots.append((own, start, leaves[name].moved, match.ref.order))

    def _finish(self, frame: _Frame) -> None:
        """Run the own code of a call backward: nothing else hangs on it."""
        for root, _, _, to in frame.roots:
            led = leads_to(root, [end for _, _, end in frame.ends])
            for (key, _, _), does in zip(frame.ends, led, strict=True):
                if does and to not in self._flows[key]:
                    self._flows[key].append(to)
        roots = [(root, start, moved) for root, start, moved, _ in frame.roots if start is not None]
        ends = [*(end for _, _, end in frame.ends), *(one for _, one in self._weights)]
        values: Sequence[torch.Tensor | None] = [None] * len(ends)
        spreads = values
        asked = self._shake.asked
        if roots and ends:
            outputs = [root for root, _, _ in roots]
            given = [widen(self.store.get(start), moved) for _, start, moved in roots]
            values = torch.autograd.grad(
                outputs, ends, given, allow_unused=True, retain_graph=not asked.shaken
            )
            if not asked.shaken:
                spreads = spreads_of(outputs, ends, given, values, self._draw, self._jitter)
        for (key, moved, end), value, spread in zip(frame.ends, values, spreads, strict=False):
            array = to_array(torch.zeros_like(end) if value is None else value, moved)
            size = 0.0 if spread is None else rms(to_array(spread, False))
            self._found[key] = Wide(self.store.put(array), size)
        rest = len(frame.ends)
        for (name, one), value, spread in zip(
            self._weights, values[rest:], spreads[rest:], strict=True
        ):
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(one, requires_grad=False)
                self._spreads[name] = torch.zeros_like(one, requires_grad=False)
            if value is not None:
                spread = torch.zeros_like(value) if spread is None else spread
                self._sums[name] += value
                self._spreads[name] += spread
                if owner(name, self._called) != frame.match.ref.path:
                    share = (frame.match.ref.order, name)
                    before = self._users.get(share, (torch.zeros_like(value),) * 2)
                    self._users[share] = (before[0] + value, before[1] + spread)

    def _put64(self, one: torch.Tensor) -> Buffer:
        return self.store.put(to_array(one, False))


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
