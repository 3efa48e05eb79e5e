"""The backward pass of the port, call by call: each with the reference's inputs and gradients.

The port runs once, every call forced as in `force.nnx`. The local code of each call is
differentiated by itself: calls inside it are not made then, but return what the reference's
returned, as if that were given. So a gradient that one call stops or spoils is none in another.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity.capture.hooks_nnx import Observer, observed
from parity.capture.linen import Part
from parity.capture.nnx import Method, aliased, named_tensors, target, trace_state
from parity.capture.recorder import bind, join, unbind
from parity.capture.restore_nnx import kept_port
from parity.core.arrays import Array, read
from parity.core.calls import Match
from parity.core.exceptions import first_line
from parity.core.store import Buffer
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import NotMeasured, Recording, Turns, by_port_leaf, values
from parity.force.nnx import replaced
from parity.gradients.protocol import Gradients, Key, Side

NO_GRADIENT = "not measured: the port has no gradient"

Made = Callable[[nnx.Module], Callable[..., Any]]
"""The method called on a module, as a function of its arguments alone."""


@dataclass
class PortRun:
    """Gradients of the port at the boundaries of its calls, by the `order` of the reference's.

    `local` are those of the local code of calls: of its inputs and tensors, and of the outputs of
    the calls inside it. `whole` are those of calls that have others inside, with all of that.
    Leaves have the port's names, tensors their full name. `done` are the calls that have any,
    `problems` say why others have none. Calls that are `hidden` are made under a JAX
    transformation: their code counts with that of the call around them. `outputs` are what calls
    returned by themselves. `aliases` maps all names of a variable, which modules may share, to the
    one used here.
    """

    local: dict[Key, Buffer] = field(default_factory=dict)
    whole: dict[Key, Buffer] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    containers: set[int] = field(default_factory=set)
    problems: dict[int, str] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    outputs: dict[tuple[int, str], Buffer] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def differentiate_port(
    modules: Mapping[str, nnx.Module], method: Method, recording: Recording, recorded: Gradients
) -> PortRun:
    """Run the root, and each matched call backward from the `recorded` gradients.

    What the port compiles by itself runs operation by operation, as in `force.nnx`.

    Raises:
        NotMeasured: the port does not run so.
    """
    root, matches = recording.root, recording.matches
    inner = {match.port.path for match in matches[:-1]}
    watched = {p: m for p, m in modules.items() if p in inner and not isinstance(m, Part)}
    module = modules[root.port.path]
    if root.port.arguments is None:
        raise NotMeasured(f"{NO_GRADIENT}: its arguments were not kept")
    given = flatten(rebuild(root.port.arguments, list(map(aliased, values(root, recording.store)))))
    run = _Differentiating(modules, recording, recorded)
    objects = [value for _, value in given.statics]
    eager = jax.disable_jit() if any(call.traced for call in recording.calls) else nullcontext()
    try:
        with eager, kept_port(module, *objects), observed(watched, run):
            run.call(root, module, lambda one: target(one, method), given)
    except Exception as error:  # code that ran once may fail on the reference's inputs
        raise NotMeasured(f"{NO_GRADIENT}: {first_line(error)}") from error
    return run.found


@dataclass
class _Inner:
    """A call inside another; one that is matched has `returned` what the reference's did."""

    path: str
    match: Match | None
    returned: Flat | None = None


@dataclass
class _Replay:
    """A call that is being differentiated: `inner` are the calls that it makes, in order, `given`
    the arrays that these return, and `passed` the inputs that they get.
    """

    inner: Sequence[_Inner]
    given: Mapping[Key, Any]
    state: Any
    passed: dict[Key, Any] = field(default_factory=dict)
    at: int = 0


class _Differentiating(Observer):
    """Differentiates each matched call when it has been made."""

    def __init__(
        self, modules: Mapping[str, nnx.Module], recording: Recording, recorded: Gradients
    ) -> None:
        super().__init__()
        inner = {match.port.order: match for match in recording.matches[:-1]}
        self._turns = Turns(inner, recording.calls)
        self._modules, self._store, self._recorded = modules, recording.store, recorded
        root = recording.root.port.path
        held = [(one.identity, join(root, one.full_name)) for one in named_tensors(modules[root])]
        self._names = dict(reversed(held))
        self._open: list[list[_Inner]] = []
        self._replay: _Replay | None = None
        self._apart = False
        self._outside = trace_state()
        self.found = PortRun(aliases={name: self._names[one] for one, name in held})

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        if self._replay is not None:
            return self._again(self._replay, path, function, args, kwargs)
        if self._apart:
            return function(*args, **kwargs)
        match = self._turns.next(path)
        if trace_state() != self._outside:
            if match is not None:
                self.found.hidden.add(match.ref.order)
            return function(*args, **kwargs)
        inner = _Inner(path, match)
        self._open[-1].append(inner)
        if match is None:
            return function(*args, **kwargs)
        own = flatten(bind(function, args, kwargs))
        given = flatten(replaced(own, by_port_leaf(match.inputs), self._store))
        original, module = function.func, function.args[0]  # type: ignore[attr-defined]
        output = self.call(match, module, lambda one: functools.partial(original, one), given)
        inner.returned = flatten(replaced(output, by_port_leaf(match.outputs), self._store))
        return rebuild(inner.returned.skeleton, [array for _, array in inner.returned.arrays])

    def call(self, match: Match, module: nnx.Module, made: Made, given: Flat) -> Flat:
        """Make a call, then differentiate it in the state in which its module was before."""
        before = nnx.split(module)
        self._open.append([])
        try:
            output = flatten(_called(made(module), given, [array for _, array in given.arrays]))
        finally:
            inner = self._open.pop()
        order = match.ref.order
        for name, array in output.arrays:
            self.found.outputs[order, name] = self._store.put(np.asarray(array))
        try:
            local = self._gradients(match, before, made, given, inner)
            container = any(one.match is not None for one in inner)
            whole = self._gradients(match, before, made, given, None) if container else {}
        except Exception as error:  # code without a gradient fails in ways of its own
            self.found.problems[order] = f"{NO_GRADIENT}: {first_line(error)}"
            return output
        self.found.local |= local
        self.found.whole |= whole
        self.found.done.add(order)
        if container:
            self.found.containers.add(order)
        return output

    def _gradients(
        self,
        match: Match,
        before: Any,
        made: Made,
        given: Flat,
        inner: Sequence[_Inner] | None,
    ) -> dict[Key, Buffer]:
        """Run a call backward; without `inner` with all that is inside it."""
        graph, state = before
        variables = nnx.to_flat_state(state)
        weights = {i: v.get_value() for i, (_, v) in enumerate(variables) if _smooth(v.get_value())}
        inputs = {name: array for name, array in given.arrays if _smooth(array)}
        children = {
            one.match.ref.order: (one.match, one.returned.arrays)
            for one in inner or ()
            if one.match is not None and one.returned is not None
        }
        returned: dict[Key, Any] = {
            (order, "output", name): array
            for order, (_, arrays) in children.items()
            for name, array in arrays
            if _smooth(array)
        }

        def function(weights: Any, inputs: Any, returned: Any) -> Any:
            values = [weights.get(i, v.get_value()) for i, (_, v) in enumerate(variables)]
            both = zip(variables, values, strict=True)
            held = [(path, variable.replace(value)) for (path, variable), value in both]
            module = nnx.merge(graph, nnx.from_flat_state(held))
            replay = _Replay(inner or (), returned, trace_state())
            self._replay, self._apart = None if inner is None else replay, True
            try:
                arrays = [inputs.get(name, array) for name, array in given.arrays]
                output = flatten(_called(made(module), given, arrays))
            finally:
                self._replay, self._apart = None, False
            return {name: array for name, array in output.arrays if _smooth(array)}, replay.passed

        (outputs, passed), back = jax.vjp(function, weights, inputs, returned)
        of_weights, of_inputs, of_returned = back(
            (
                {
                    name: self._start("output", match, name, array)
                    for name, array in outputs.items()
                },
                {
                    key: self._start("input", children[key[0]][0], key[2], array)
                    for key, array in passed.items()
                },
            )
        )
        order, names = match.ref.order, self._variable_names(match.port.path)
        found: dict[Key, Any] = {(order, "input", name): one for name, one in of_inputs.items()}
        for i, one in of_weights.items():
            if variables[i][0] in names:
                found[order, "tensor", names[variables[i][0]]] = one
        return {key: self._put(one) for key, one in (found | of_returned).items()}

    def _again(
        self, replay: _Replay, path: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """A call inside one that is being differentiated."""
        if trace_state() != replay.state:
            return function(*args, **kwargs)
        inner = replay.inner[replay.at] if replay.at < len(replay.inner) else None
        replay.at += 1
        if inner is None or inner.path != path:
            raise ValueError(f"it calls `{path}` only when it is run again")
        if inner.match is None or inner.returned is None:
            return function(*args, **kwargs)
        order = inner.match.ref.order
        for name, array in flatten(bind(function, args, kwargs)).arrays:
            if _smooth(array):
                replay.passed[order, "input", name] = array
        given, returned = replay.given, inner.returned.arrays
        arrays = [given.get((order, "output", name), array) for name, array in returned]
        return rebuild(inner.returned.skeleton, arrays)

    def _start(self, side: Side, match: Match, name: str, own: Any) -> Any:
        """The gradient that was recorded at a leaf of the port's; zero where none was."""
        leaf = by_port_leaf(match.inputs if side == "input" else match.outputs).get(name)
        buffer = None
        if leaf is not None:
            buffer = self._recorded.of.get((match.ref.order, side, leaf.ref.name))
        if leaf is None or buffer is None:
            return jnp.zeros(own.shape, own.dtype)
        return jnp.asarray(conjugate(read(self._store, buffer, leaf.reading)), own.dtype)

    def _put(self, array: Any) -> Buffer:
        return self._store.put(conjugate(np.asarray(array)))

    def _variable_names(self, path: str) -> Mapping[tuple[Any, ...], str]:
        """The full names of the variables of a module, by how its state names them."""
        return {
            place: self._names[id(value)]
            for place, value in nnx.iter_graph(self._modules[path])
            if isinstance(value, nnx.Variable) and id(value) in self._names
        }


def conjugate(array: Array) -> Array:
    """JAX's gradient of a complex array is the conjugate of PyTorch's."""
    return np.conj(array) if array.dtype.kind == "c" else array


def _called(function: Callable[..., Any], given: Flat, arrays: Sequence[Any]) -> Any:
    args, kwargs = unbind(function, rebuild(given.skeleton, arrays))
    return function(*args, **kwargs)


def _smooth(value: Any) -> bool:
    """True for an array that has a gradient."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
