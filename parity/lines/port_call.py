"""The port's side of a call, operation by operation."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import Any

import jax
from flax import nnx

from parity.capture.hooks_nnx import Observer, observed
from parity.capture.linen import Part, below
from parity.capture.nnx import Method, aliased, submodules, target, trace_state
from parity.capture.recorder import bind, join, unbind
from parity.capture.restore_nnx import kept_port
from parity.core.calls import Call, LeafMatch, Match
from parity.core.store import Store
from parity.core.tree import flatten, rebuild
from parity.force.common import Turns, by_port_leaf, values, within
from parity.force.nnx import replaced
from parity.lines.call import Key, Scene, Traced
from parity.lines.jax_operations import evaluate
from parity.lines.operations import Result
from parity.lines.source import Frames, defined, stack


def trace_port(scene: Scene, match: Match, *, run: bool = True) -> Traced:
    """The port's side of a call; without `run` it has no program, but the stacks of calls inside.

    What a tap shows is in the program of the call around it, in which all taps return the
    reference's values.

    Raises:
        ValueError: it cannot be made by itself.
    """
    shown = match
    while match.port.tapped and match.parent != -1:
        match = scene.match(match.parent)
    call, sides = match.port, scene.sides
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")
    module = sides.module(match)
    method: Method = sides.nnx_method if match.ref.parent == -1 else "__call__"
    calls = within(scene.calls[1], call.order)
    inside = scene.inside(match)
    children = _Children(match, shown, inside, calls, scene.store)
    inner = {one.port.path for one in inside if one is not match and not one.port.tapped}
    modules = sides.nnx_modules
    if match.turn is not None:  # those of the layer that is cut out
        modules = {join(call.path, path): one for path, one in submodules(module).items()}
    watched = {path: one for path, one in modules.items() if path in inner}
    given = [aliased(array) for array in values(match, scene.store)]
    eager = any(one.traced or one.tapped for one in calls if one.order != call.order)
    arguments = call.arguments

    def function(state: Any, *arrays: Any) -> list[Any]:
        own = module if graph is None else nnx.merge(graph, state)
        children.outside = trace_state()
        called = target(own, method)
        args, kwargs = unbind(called, rebuild(arguments, arrays))
        children.sites[call.order] = defined(called)
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
    traced = Traced(sites=children.sites, opened=children.opened)
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
    """Lets calls inside return the reference's outputs, and keeps what they were given.

    Where a tap is to be `shown`, that shows what is made there.
    """

    def __init__(
        self,
        match: Match,
        shown: Match,
        inside: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
    ) -> None:
        super().__init__(match.port.path)
        self._match, self._shown, self._store = match, shown, store
        self._turns = Turns({one.port.order: one for one in inside}, calls)
        self._arrays: list[Any] = []
        self.keys: list[tuple[Key, str]] = []
        self.sites: dict[int, Frames] = {}
        self.base: FrameType | None = None
        self.outside: Any = None
        self.opened: set[int] = set()

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        match = self._turns.next(path)
        if match is None or self._opens(match):
            return function(*args, **kwargs)
        self._keep(match, match.inputs, flatten(bind(function, args, kwargs)).arrays)
        output = flatten(function(*args, **kwargs))
        return replaced(output, by_port_leaf(match.outputs), self._store)

    def tapped(self, running: str, path: str, value: Any) -> Any:
        match, given = self._turns.next(path), flatten(value)
        if match is None or self._opens(match):
            return value
        self._keep(match, match.outputs, given.arrays)
        if match is self._shown:
            return value
        return replaced(given, by_port_leaf(match.outputs), self._store)

    def _opens(self, match: Match) -> bool:
        if trace_state() == self.outside:
            return False
        self.opened.add(match.ref.order)
        return True

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
                leads = "" if match is self._match else match.port.path
                self.keys.append(((order, by_name[name].ref.name), leads))
