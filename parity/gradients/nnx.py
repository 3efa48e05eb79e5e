"""The backward pass of the port: as it runs, and call by call with what the reference has there.

In the second run every call is forced as in `force.nnx`: what the reference has at a boundary is an
argument of the function that is differentiated, and what the port passes there a result. So a
gradient that one call stops or spoils is none in another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
from parity.force.common import NotMeasured, Recording, Turns, by_port_leaf, reference, values
from parity.force.nnx import given_as, replaced
from parity.gradients.records import Gradients, Key, Side, paired

NO_GRADIENT = "not measured: the port has no gradient"


@dataclass(frozen=True)
class PortRun:
    """Gradients of the port at the boundaries of its calls, by the `order` of the reference's.

    `local` are those of the local code of calls: of its inputs and tensors, and of the outputs of
    the calls inside it. `free` are those of inputs and tensors as the port runs by itself. Leaves
    have the port's names, tensors their full name, and are those of each call. Calls that are
    `hidden` are made under a JAX transformation: their code counts with that of the call around
    them. `aliases` maps all names of a variable, which modules may share, to the one used here.
    """

    local: Mapping[Key, Buffer] = field(default_factory=dict)
    free: Mapping[Key, Buffer] = field(default_factory=dict)
    hidden: frozenset[int] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)


def differentiate_port(
    modules: Mapping[str, nnx.Module], method: Method, recording: Recording, recorded: Gradients
) -> PortRun:
    """Gradients of the port, from the `recorded` ones.

    What the port compiles by itself runs operation by operation, as in `force.nnx`, also where it
    does so under a transformation alone.

    Raises:
        NotMeasured: the port does not run so.
    """
    root, matches = recording.root, recording.matches
    if root.port.arguments is None:
        raise NotMeasured(f"{NO_GRADIENT}: its arguments were not kept")
    inner = {match.port.path for match in matches[:-1]}
    watched = {p: m for p, m in modules.items() if p in inner and not isinstance(m, Part)}

    def gradients(kind: type[_Backward], eager: bool) -> tuple[_Backward, dict[Key, Buffer]]:
        run = kind(modules, recording, recorded)
        objects = [value for _, value in run.given.statics]
        compiled = jax.disable_jit() if eager else nullcontext()
        with kept_port(modules[root.port.path], *objects), observed(watched, run), compiled:
            return run, run.gradients(method)

    try:
        eager = any(call.traced for call in recording.calls)
        forced, local = gradients(_Forced, eager)
        if forced.hidden and not eager:  # by a program inside, which a recorded run does not make
            eager = True
            forced, local = gradients(_Forced, eager)
        _, as_it_runs = gradients(_Backward, eager)
    except Exception as error:  # code without a gradient fails in ways of its own
        raise NotMeasured(f"{NO_GRADIENT}: {first_line(error)}") from error
    return PortRun(local, as_it_runs, frozenset(forced.hidden), forced.aliases)


class _Backward(Observer):
    """As it runs: the gradient of an input is that of a zero that is added to it."""

    def __init__(
        self, modules: Mapping[str, nnx.Module], recording: Recording, recorded: Gradients
    ) -> None:
        super().__init__()
        self.root, self.store, self._recorded = recording.root, recording.store, recorded
        self._modules, self._calls = modules, recording.calls
        self._matches = {match.port.order: match for match in recording.matches}
        path, array = self.root.port.path, values(self.root, self.store)
        held = [(one.identity, join(path, one.full_name)) for one in named_tensors(modules[path])]
        self._names = dict(reversed(held))
        self.aliases = {name: self._names[one] for one, name in held}
        assert self.root.port.arguments is not None
        self.given = flatten(rebuild(self.root.port.arguments, list(map(aliased, array))))
        self.hidden: set[int] = set()
        self._by_order = {match.ref.order: match for match in recording.matches}

    def gradients(self, method: Method) -> dict[Key, Buffer]:
        """Those of all boundaries and tensors, by call."""
        graph, state = nnx.split(self._modules[self.root.port.path])

        def function(leaves: Mapping[Key, Any], weights: Mapping[Key, Any]) -> Mapping[Key, Any]:
            inner = {x: match for x, match in self._matches.items() if match is not self.root}
            self._turns, self._outside = Turns(inner, self._calls), trace_state()
            self.leaves, self._weights, self._made = leaves, weights, set[int]()
            self.passed: dict[Key, Any] = {}
            # variables of this trace: others cannot be written to
            held = [(at, one.replace(one.get_value())) for at, one in nnx.to_flat_state(state)]
            module = nnx.merge(graph, nnx.from_flat_state(held))
            self._call(self.root, module, lambda: target(module, method), self.given)
            return self.passed

        at = [(match, self._modules[match.port.path]) for match in self._matches.values()]
        held = [one for match, module in at for one in self._tensors(match, module).items()]
        weights = {key: variable.get_value() for key, variable in held}
        passed, back = jax.vjp(function, self.boundaries(), weights)
        of_leaves, of_weights = back({key: self._start(key, one) for key, one in passed.items()})
        found = {key: one for key, one in (of_leaves | of_weights).items() if key[0] in self._made}
        return {key: self.store.put(conjugate(np.asarray(one))) for key, one in found.items()}

    def boundaries(self) -> dict[Key, Any]:
        """Arrays to differentiate by, beside tensors."""
        return {
            (match.ref.order, "input", leaf.port.name): jnp.zeros(
                leaf.port.buffer.shape, leaf.port.buffer.dtype
            )
            for match in self._matches.values()
            for leaf in paired(match.inputs)
            if leaf.port and leaf.port.buffer
        }

    def behind(self, match: Match, side: Side, own: Flat) -> Any:
        """The arrays at a boundary, for the code behind it."""
        order = match.ref.order
        if side == "output":
            if match is self.root:
                self.passed |= {(order, side, name): x for name, x in own.arrays if _smooth(x)}
            return rebuild(own.skeleton, [one for _, one in own.arrays])
        zeros = [self.leaves.get((order, side, name)) for name, _ in own.arrays]
        both = zip([one for _, one in own.arrays], zeros, strict=True)
        return rebuild(own.skeleton, [one if zero is None else one + zero for one, zero in both])

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        match = self._turns.next(path)
        if match is not None and trace_state() == self._outside:
            module = function.args[0]  # type: ignore[attr-defined]
            given = flatten(bind(function, args, kwargs))
            return self._call(match, module, lambda: function, given)
        if match is not None:
            self.hidden.add(match.ref.order)
        return function(*args, **kwargs)

    def _call(
        self, match: Match, module: nnx.Module, made: Callable[[], Callable[..., Any]], own: Flat
    ) -> Any:
        arguments = self.behind(match, "input", own)
        with self._of_call(match, module):
            function = made()  # that of a plain function has the parameters in it
            args, kwargs = unbind(function, arguments)
            output = flatten(function(*args, **kwargs))
        self._made.add(match.ref.order)
        return self.behind(match, "output", output)

    @contextmanager
    def _of_call(self, match: Match, module: nnx.Module) -> Iterator[None]:
        """In the block the module holds the tensors of this call."""
        held = self._tensors(match, module)
        before = {key: variable.get_value() for key, variable in held.items()}
        own = {key: self._weights[key] for key in held}
        for key, variable in held.items():
            variable.set_value(own[key])
        try:
            yield
        finally:
            for key, variable in held.items():
                if variable.get_value() is own[key]:  # the call has not changed it
                    variable.set_value(before[key])

    def _tensors(self, match: Match, module: nnx.Module) -> dict[Key, nnx.Variable[Any]]:
        """The variables with a gradient of the module of a call, which may be a copy of it."""
        own = _variables(self._modules[match.port.path])
        names = {at: self._names[id(one)] for at, one in own.items() if id(one) in self._names}
        return {
            (match.ref.order, "tensor", names[at]): one
            for at, one in _variables(module).items()
            if at in names and _smooth(one.get_value())
        }

    def _start(self, key: Key, own: Any) -> Any:
        """The gradient that was recorded at a leaf of the port's; zero where none was."""
        order, side, name = key
        leaf = by_port_leaf(dict(_sides(self._by_order[order]))[side]).get(name)
        buffer = self._recorded.of.get((order, side, leaf.ref.name)) if leaf else None
        if leaf is None or buffer is None:
            return jnp.zeros(own.shape, own.dtype)
        return jnp.asarray(conjugate(read(self.store, buffer, leaf.reading)), own.dtype)


class _Forced(_Backward):
    """With what the reference has at every boundary, on either side of it."""

    def boundaries(self) -> dict[Key, Any]:
        return {
            (match.ref.order, side, leaf.port.name): given_as(
                reference(leaf, self.store), leaf.port.buffer
            )
            for match in self._matches.values()
            for side, leaves in _sides(match)
            for leaf in paired(leaves)
            if leaf.port and leaf.port.buffer
        }

    def behind(self, match: Match, side: Side, own: Flat) -> Any:
        order, leaves = match.ref.order, dict(_sides(match))[side]
        if match is not self.root or side == "output":
            self.passed |= {(order, side, name): x for name, x in own.arrays if _smooth(x)}
        forced = flatten(replaced(own, by_port_leaf(leaves), self.store))
        arrays = [
            self.leaves.get((order, side, name), jax.lax.stop_gradient(one))
            for name, one in forced.arrays
        ]
        return rebuild(forced.skeleton, arrays)


def _sides(match: Match) -> Sequence[tuple[Side, Any]]:
    return ("input", match.inputs), ("output", match.outputs)


def _variables(module: nnx.Module) -> dict[tuple[Any, ...], nnx.Variable[Any]]:
    return {at: one for at, one in nnx.iter_graph(module) if isinstance(one, nnx.Variable)}


def conjugate(array: Array) -> Array:
    """JAX's gradient of a complex array is the conjugate of PyTorch's."""
    return np.conj(array) if array.dtype.kind == "c" else array


def _smooth(value: Any) -> bool:
    """True for an array that has a gradient."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
