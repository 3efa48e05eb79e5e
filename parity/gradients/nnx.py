"""The backward pass of the port, call by call: each with the reference's inputs and gradients.

The port runs once, every call forced as in `force_nnx`. Beside it the own code of each call is
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
from parity.core.calls import Call, Match
from parity.core.exceptions import first_line
from parity.core.store import Buffer, Store
from parity.core.tree import Flat, flatten, rebuild
from parity.force.common import NotMeasured, Turns, by_port_leaf, values
from parity.force.nnx import replaced
from parity.gradients.protocol import Gradients, Side

NO_GRADIENT = "not measured: the port has no gradient"

Made = Callable[[nnx.Module], Callable[..., Any]]
"""What is called on a module, as a function of its arguments alone."""


@dataclass(frozen=True)
class PortGradients:
    """What one call of the port makes of the gradients at its outputs.

    `inputs` are by name, `handed` is what goes back to outputs of the calls inside it, by the
    `order` of the reference's; `tensors` are by full name.
    """

    inputs: Mapping[str, Buffer]
    handed: Mapping[tuple[int, str], Buffer]
    tensors: Mapping[str, Buffer]


@dataclass
class PortRun:
    """What was measured: of the own code of calls, and of all that is inside those that have more
    inside, by the `order` of the reference's.

    `tensors` are sums over the own code of all calls. `problems` say why calls have no gradients.
    Calls that are `hidden` are made under a JAX transformation: their code counts with that of the
    call around them. `outputs` are what calls returned by themselves. `aliases` maps all names of
    a variable, which modules may share, to the one under which its gradient is here.
    """

    own: dict[int, PortGradients] = field(default_factory=dict)
    whole: dict[int, PortGradients] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    outputs: dict[tuple[int, str], Buffer] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def differentiate_port(
    modules: Mapping[str, nnx.Module],
    method: Method,
    matches: Sequence[Match],
    calls: Sequence[Call],
    store: Store,
    recorded: Gradients,
) -> PortRun:
    """Run the root of `matches`, and each of them backward from what was `recorded`.

    `calls` are all that the port made when it was recorded. What it compiles by itself runs
    operation by operation, as in `force_nnx`.

    Raises:
        NotMeasured: the port does not run so.
    """
    root = matches[-1]
    inner = {match.port.path for match in matches[:-1]}
    watched = {p: m for p, m in modules.items() if p in inner and not isinstance(m, Part)}
    module = modules[root.port.path]
    if root.port.arguments is None:
        raise NotMeasured(f"{NO_GRADIENT}: its arguments were not kept")
    given = flatten(rebuild(root.port.arguments, list(map(aliased, values(root, store)))))
    run = _Differentiating(modules, matches, calls, store, recorded)
    objects = [value for _, value in given.statics]
    eager = jax.disable_jit() if any(call.traced for call in calls) else nullcontext()
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
    """A call that is being differentiated: `inner` are the calls that it makes, in order, and
    `given` are the arrays that these return.
    """

    inner: Sequence[_Inner]
    given: Mapping[tuple[int, str], Any]
    state: Any
    handed: dict[tuple[int, str], Any] = field(default_factory=dict)
    at: int = 0


class _Differentiating(Observer):
    """Differentiates each matched call when it has been made."""

    def __init__(
        self,
        modules: Mapping[str, nnx.Module],
        matches: Sequence[Match],
        calls: Sequence[Call],
        store: Store,
        recorded: Gradients,
    ) -> None:
        super().__init__()
        self._turns = Turns({match.port.order: match for match in matches[:-1]}, calls)
        self._modules, self._store, self._recorded = modules, store, recorded
        root = matches[-1].port.path
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
            own = self._gradients(match, before, made, given, inner)
            if any(one.match is not None for one in inner):
                self.found.whole[order] = self._gradients(match, before, made, given, None)
        except Exception as error:  # code without a gradient fails in ways of its own
            self.found.problems[order] = f"{NO_GRADIENT}: {first_line(error)}"
            return output
        self.found.own[order] = own
        for name, buffer in own.tensors.items():
            array = self._store.get(buffer).astype(np.promote_types(buffer.dtype, np.float64))
            self.found.tensors[name] = self.found.tensors.get(name, 0) + array
        return output

    def _gradients(
        self,
        match: Match,
        before: Any,
        made: Made,
        given: Flat,
        inner: Sequence[_Inner] | None,
    ) -> PortGradients:
        """Run a call backward; without `inner` with all that is inside it."""
        graph, state = before
        variables = nnx.to_flat_state(state)
        weights = {i: v.get_value() for i, (_, v) in enumerate(variables) if _smooth(v.get_value())}
        inputs = {name: array for name, array in given.arrays if _smooth(array)}
        returned = {
            (one.match.ref.order, name): array
            for one in inner or ()
            if one.match is not None and one.returned is not None
            for name, array in one.returned.arrays
            if _smooth(array)
        }

        def function(weights: Any, inputs: Any, returned: Any) -> Any:
            held = [(path, v.replace(weights[i]) if i in weights else v.replace(v.get_value()))
                    for i, (path, v) in enumerate(variables)]  # fmt: skip
            module = nnx.merge(graph, nnx.from_flat_state(held))
            replay = None if inner is None else _Replay(inner, returned, trace_state())
            self._replay, self._apart = replay, True
            try:
                arrays = [inputs.get(name, array) for name, array in given.arrays]
                output = flatten(_called(made(module), given, arrays))
            finally:
                self._replay, self._apart = None, False
            own = {name: array for name, array in output.arrays if _smooth(array)}
            return own, {} if replay is None else replay.handed

        out, back = jax.vjp(function, weights, inputs, returned)
        by_order = {one.match.ref.order: one.match for one in inner or () if one.match is not None}
        starts = (
            {name: self._start("output", match, name, array) for name, array in out[0].items()},
            {
                (order, name): self._start("input", by_order[order], name, array)
                for (order, name), array in out[1].items()
            },
        )
        of_weights, of_inputs, of_returned = back(starts)
        names = self._variable_names(match.port.path)
        return PortGradients(
            {name: self._put(array) for name, array in of_inputs.items()},
            {key: self._put(array) for key, array in of_returned.items()},
            {
                names[variables[i][0]]: self._put(array)
                for i, array in of_weights.items()
                if variables[i][0] in names
            },
        )

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
                replay.handed[order, name] = array
        arrays = [replay.given.get((order, name), array) for name, array in inner.returned.arrays]
        return rebuild(inner.returned.skeleton, arrays)

    def _start(self, side: Side, match: Match, name: str, own: Any) -> Any:
        """The gradient that was recorded at a leaf of the port's; zero where none was."""
        leaf = by_port_leaf(match.inputs if side == "input" else match.outputs).get(name)
        buffer = None
        if leaf is not None:
            buffer = self._recorded.leaves.get((match.ref.order, side, leaf.ref.name))
        if leaf is None or buffer is None:
            return jnp.zeros(own.shape, own.dtype)
        return jnp.asarray(conjugate(read(self._store, buffer, leaf.undo)), own.dtype)

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
    """Whether it is an array that has a gradient."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
