"""One matched call of both sides, operation by operation.

It is given the reference's inputs, and the calls inside it return the reference's outputs: so only
its local code is laid open.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

import jax
import numpy as np
import torch
from flax import nnx

from parity.capture.hooks_nnx import Observer, observed
from parity.capture.linen import Part, below
from parity.capture.nnx import Method, aliased, target
from parity.capture.recorder import bind, unbind
from parity.capture.restore_nnx import kept_port
from parity.core.calls import Call, LeafMatch, Match, above
from parity.core.store import Store
from parity.core.tree import flatten, rebuild
from parity.force.common import Recording, Sides, Turns, by_port_leaf, values, within
from parity.force.float64 import TorchModules
from parity.force.nnx import replaced
from parity.force.torch import Mode, force_reference
from parity.lines.jax_operations import evaluate
from parity.lines.operations import Program, Result
from parity.lines.source import Frames, stack
from parity.lines.torch_operations import Watched

Key = tuple[int, str]
"""A leaf that leaves the call: the `order` of the call that it is of, and the reference's name."""


@dataclass(frozen=True)
class Scene:
    """The recorded case: matches, all calls of the two sides, and both sides to run again."""

    matches: Sequence[Match]
    calls: tuple[Sequence[Call], Sequence[Call]]
    sides: Sides
    store: Store

    def match(self, order: int) -> Match:
        """The match of the reference's call with this order."""
        return next(match for match in self.matches if match.ref.order == order)

    def inside(self, match: Match) -> list[Match]:
        """The matches of a call and those inside it, itself the last."""
        parents = {one.ref.order: one.parent for one in self.matches}
        order = match.ref.order
        return [one for one in self.matches if order in above(one.ref.order, parents)]


@dataclass
class Traced:
    """The program of one side, what leaves it by key, and the stack at each call inside it."""

    program: Program = field(default_factory=Program)
    results: dict[Key, Result] = field(default_factory=dict)
    sites: dict[int, Frames] = field(default_factory=dict)


def trace_reference(scene: Scene, match: Match) -> Traced:
    """The reference's side of a call, in float64.

    Raises:
        RuntimeError: it does not run in float64, or not by itself.
    """
    reference = scene.sides.reference
    assert isinstance(reference, TorchModules)
    module, method = reference.of(match.ref)
    traced, own = Traced(), match.ref.order
    watched = Watched(traced.program, _narrow(match))
    recording = Recording(scene.inside(match), within(scene.calls[0], own), scene.store)

    def heard(one: Match, passed: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        order, leaves, tensors = one.ref.order, one.inputs, passed
        if one.ref.tapped or order == own:
            leaves, tensors = one.outputs, outputs
        frames = () if order == own else watched.here()
        traced.sites[order] = frames
        for leaf in leaves:
            tensor = tensors.get(leaf.ref.name)
            if tensor is not None:
                number = watched.number(tensor)
                traced.results[order, leaf.ref.name] = Result(number, one.ref.path, frames)

    mode = cast(Mode, watched)  # it is entered, and made inactive, as one is
    problem = force_reference(module, method, recording, heard, {own}, mode)
    if problem:
        raise RuntimeError(problem)
    return traced


_TYPES = ("float64", "float32", "bfloat16", "float16")
"""Types of numbers, the finest first."""


def _narrow(match: Match) -> torch.dtype:
    """The type that both sides compute in: the coarser one of the finest of each."""
    found: torch.dtype = getattr(torch, _TYPES[max(_finest(match.ref), _finest(match.port))])
    return found


def _finest(call: Call) -> int:
    kinds = {str(leaf.buffer.dtype) for leaf in (*call.inputs, *call.outputs) if leaf.buffer}
    return next((at for at, name in enumerate(_TYPES) if name in kinds), 1)


def trace_port(scene: Scene, match: Match, *, run: bool = True) -> Traced:
    """The port's side of a call; without `run` it has no program, but the stacks of calls inside.

    Raises:
        ValueError: it cannot be made by itself.
    """
    call, sides = match.port, scene.sides
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")
    module = sides.nnx_modules[call.path]
    method: Method = sides.nnx_method if match.ref.parent == -1 else "__call__"
    calls = within(scene.calls[1], call.order)
    inside = scene.inside(match)
    children = _Children(match, inside, calls, scene.store)
    inner = {one.port.path for one in inside if one is not match and not one.port.tapped}
    watched = {path: one for path, one in sides.nnx_modules.items() if path in inner}
    given = [aliased(array) for array in values(match, scene.store)]
    eager = any(one.traced or one.tapped for one in calls if one.order != call.order)
    arguments = call.arguments

    def function(state: Any, *arrays: Any) -> list[Any]:
        own = module if graph is None else nnx.merge(graph, state)
        called = target(own, method)
        args, kwargs = unbind(called, rebuild(arguments, arrays))
        return children.outputs(called(*args, **kwargs))

    objects = [value for _, value in flatten(rebuild(arguments, given)).statics]
    with (
        kept_port(module, *objects),
        jax.disable_jit() if eager else nullcontext(),
        observed(watched, children),
        below(call.path),
    ):
        graph, state = (None, None) if isinstance(module, Part) else nnx.split(module)
        leaves, form = jax.tree.flatten((state, given))
        children.base = sys._getframe()
        closed = jax.make_jaxpr(lambda *x: _called(function, form, x))(*leaves)
    traced = Traced(sites=children.sites)
    if run:
        weights = [at < len(leaves) - len(given) for at in range(len(leaves))]
        numbers = evaluate(closed, leaves, weights, traced.program, known_constants=False)
        traced.results = dict(_results(children, numbers))
    return traced


def _called(function: Callable[..., Any], form: Any, leaves: Sequence[Any]) -> Any:
    state, given = jax.tree.unflatten(form, leaves)
    return function(state, *given)


def _results(children: "_Children", numbers: Sequence[int | None]) -> Iterator[tuple[Key, Result]]:
    for (key, path), number in zip(children.keys, numbers, strict=True):
        if number is not None:
            yield key, Result(number, path, children.sites.get(key[0], ()))


class _Children(Observer):
    """Lets calls inside return the reference's outputs, and keeps what they were given."""

    def __init__(
        self, match: Match, inside: Sequence[Match], calls: Sequence[Call], store: Store
    ) -> None:
        super().__init__(match.port.path)
        self._match, self._store = match, store
        self._turns = Turns({one.port.order: one for one in inside}, calls)
        self._arrays: list[Any] = []
        self.keys: list[tuple[Key, str]] = []
        self.sites: dict[int, Frames] = {}
        self.base: FrameType | None = None

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        match = self._turns.next(path)
        if match is None:
            return function(*args, **kwargs)
        self._keep(match, match.inputs, flatten(bind(function, args, kwargs)).arrays)
        output = flatten(function(*args, **kwargs))
        return replaced(output, by_port_leaf(match.outputs), self._store)

    def tapped(self, running: str, path: str, value: Any) -> Any:
        match, given = self._turns.next(path), flatten(value)
        if match is None:
            return value
        self._keep(match, match.outputs, given.arrays)
        return replaced(given, by_port_leaf(match.outputs), self._store)

    def outputs(self, output: Any) -> list[Any]:
        """All that leaves the call: what it passed to calls inside, and its `output`."""
        self._keep(self._match, self._match.outputs, flatten(output).arrays)
        return self._arrays

    def _keep(
        self, match: Match, leaves: Sequence[LeafMatch], arrays: Sequence[tuple[str, Any]]
    ) -> None:
        by_name = {leaf.port.name: leaf for leaf in leaves if leaf.port is not None}
        order = match.ref.order
        if match is not self._match and self.base is not None:
            self.sites[order] = stack(self.base, 3)
        for name, array in arrays:
            if name in by_name:
                self._arrays.append(array)
                self.keys.append(((order, by_name[name].ref.name), match.port.path))


def placed(array: np.ndarray[Any, Any], leaf: LeafMatch) -> np.ndarray[Any, Any]:
    """The reference's array in the layout in which the port's is expected."""
    return np.moveaxis(array, 1, -1) if leaf.ref.moved and not leaf.undo else array
