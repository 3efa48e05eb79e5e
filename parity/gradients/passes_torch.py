"""One run of the reference with something at the boundary of each call: `Natural` and `Forced`.

What goes into a call and comes out of it is copied, which is the identity to autograd: there the
gradients are read, and in float64 what comes in from either side is replaced by what was recorded.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from parity.capture.recorder import join
from parity.capture.torch import Method, invoke, target, tensor_of, to_numpy
from parity.core.arrays import Array
from parity.core.calls import Match
from parity.core.store import Buffer
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import NotMeasured, Recording, by_ref_leaf
from parity.force.torch import Calls, Forward, Replaced, Widened, widen
from parity.gradients.records import Gradients, Key, Side

NO_GRADIENT = "not measured: the reference has no gradient"


class Natural(Calls):
    """As it runs: the gradients are read where they pass."""

    def __init__(
        self, root: torch.nn.Module, method: Method, recording: Recording, held: Sequence[Widened]
    ) -> None:
        super().__init__(root, recording)
        self._method = method
        own = {id(one.wide): one.own for one in held}
        every = root.named_parameters(remove_duplicate=False)
        named = {join(self.prefix, name): own[id(one)] for name, one in every if id(one) in own}
        first = {id(one): name for name, one in reversed(named.items())}
        self._shared = {name: first[id(one)] for name, one in named.items()}
        self._held = [(first[id(one.own)], one) for one in held if id(one.own) in first]
        self._ends: list[tuple[Key, bool, torch.Tensor]] = []
        self._found: dict[Key, Buffer] = {}

    def gradients(self, seed: int) -> Gradients:
        """Those of all boundaries and parameters, from ones at the outputs that the seed gives."""
        draw = np.random.default_rng(seed)
        roots: list[tuple[torch.Tensor, torch.Tensor]] = []
        moved = {leaf.name: leaf.moved for leaf in self.match.ref.outputs}
        for name, one in self.run(as_tensor).arrays:
            if not _has_gradient(one):
                continue
            start = _normal(draw, one)
            if one.requires_grad:
                roots.append((one, start))
            else:  # what the reference detaches the port has to stop
                key = _key(self.match, "output", name)
                self._found[key] = self.store.put(to_numpy(start, moved[name]))
        if not roots:
            raise NotMeasured(f"{NO_GRADIENT}: none of its outputs depends on anything by autograd")
        return Gradients(self.backward(roots) | self._found, self._shared)

    def backward(self, roots: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[Key, Buffer]:
        """Gradients at the ends, from outputs with theirs."""
        outputs, given = [root for root, _ in roots], [start for _, start in roots]
        ends = [end for _, _, end in self._ends]
        sums: dict[Key, Any] = defaultdict(int)  # modules that share a parameter have one each
        values = torch.autograd.grad(outputs, ends, given, allow_unused=True) if roots else ()
        for (key, moved, _), value in zip(self._ends, values, strict=False):
            if value is not None:
                sums[key] = sums[key] + to_numpy(value, moved)
        return {key: self.store.put(value) for key, value in sums.items()}

    def run(self, tensor: Callable[[Array, bool], torch.Tensor]) -> Flat:
        """Make the root call on a `tensor` of each recorded input, which may have been moved."""
        function, call = target(self.root, self._method), self.match.ref
        inputs = [(self.store.get(leaf.buffer), leaf.moved) for leaf in call.inputs if leaf.buffer]
        assert call.arguments is not None
        # copies: the call may write to them
        given = flatten(rebuild(call.arguments, [tensor(*one).clone() for one in inputs]))

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return invoke(self.root, self._method, args, kwargs)

        with self.watched():
            return flatten(self.around(self.match, forward, given, ()))

    def around(self, match: Match, forward: Forward, given: Flat, held: Sequence[Any]) -> Any:
        """Make it between boundaries, with parameters of its own."""

        @functools.wraps(forward)
        def separate(*args: Any, **kwargs: Any) -> Any:
            before = [(one, one.group[one.name]) for _, one in self._held]
            for name, one in self._held:
                one.group[one.name] = self.end(_key(match, "tensor", name), False, one.wide)
            try:
                return forward(*args, **kwargs)
            finally:
                for one, outer in before:
                    one.group[one.name] = outer

        arrays = [self.passed(match, "input", name, own) for name, own in given.arrays]
        passed = Replaced(given, arrays, held)
        output = passed.call(separate)
        returned = [self.passed(match, "output", name, own) for name, own in output.arrays]
        return passed.result(output, returned)

    def end(self, key: Key, moved: bool, value: torch.Tensor) -> torch.Tensor:
        """The value, at which gradients end."""
        end = value.detach().requires_grad_(_has_gradient(value))
        if end.requires_grad:
            self._ends.append((key, moved, end))
        return end

    def passed(self, match: Match, side: Side, name: str, own: Any) -> Any:
        """A copy of an array, through which its gradient passes and is kept."""
        leaves = match.ref.inputs if side == "input" else match.ref.outputs
        leaf = next((leaf for leaf in leaves if leaf.name == name), None)
        last = match is self.match and side == "output" and not _depends(own)
        if leaf is None or last or not _has_gradient(own) or not torch.is_grad_enabled():
            return own
        key, put, moved = _key(match, side, name), self.store.put, leaf.moved
        # a constant of the code around it has a gradient too
        copy = (own if own.requires_grad else self.end(key, moved, own)).clone()
        copy.register_hook(lambda one: self._found.update({key: put(to_numpy(one, moved))}))
        return copy


class Forced(Natural):
    """In float64, with what was recorded at every boundary, on either side of it."""

    def forced(self, recorded: Gradients) -> Gradients:
        """Gradients of all boundaries, and those of parameters by call."""
        self._recorded = recorded
        self._roots: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.run(widen)
        return Gradients(self.backward(self._roots))

    def passed(self, match: Match, side: Side, name: str, own: Any) -> Any:
        """The recorded array, at which gradients of the code behind it end."""
        leaf = by_ref_leaf(match.inputs if side == "input" else match.outputs).get(name)
        if leaf is None or leaf.buffer is None:
            # a copy: it may be written to
            return own.detach().clone() if isinstance(own, torch.Tensor) else own
        value, key = widen(self.store.get(leaf.buffer), leaf.moved), _key(match, side, name)
        start = self._recorded.of.get(key)
        if start is not None and _depends(own):
            self._roots.append((own.clone(), widen(self.store.get(start), leaf.moved).clone()))
        return self.end(key, leaf.moved, value).clone()


def _key(match: Match, side: Side, name: str) -> Key:
    return match.ref.order, side, name


def as_tensor(array: Array, moved: bool) -> torch.Tensor:
    """A recorded array as a tensor of its own type in PyTorch's layout."""
    tensor = tensor_of(array)
    # in memory as users have it: the backward kernel of a group norm loses digits channels last
    return tensor.movedim(-1, 1).contiguous() if moved else tensor


def _has_gradient(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex())


def _depends(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.requires_grad


def _normal(draw: np.random.Generator, like: torch.Tensor) -> torch.Tensor:
    """N(0, 1) of a shape, in its type."""
    drawn = torch.from_numpy(np.asarray(draw.standard_normal(tuple(like.shape))))
    if like.is_complex():
        drawn = drawn + 1j * torch.from_numpy(np.asarray(draw.standard_normal(tuple(like.shape))))
    return drawn.to(like.dtype)
