"""One run of the port: every call gets the reference's inputs and returns its outputs.

What a call computes in between is its module's local computation, and so is what it passes to the
calls inside it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity.align.leaves import PLAIN, same_value
from parity.capture.hooks_nnx import Observer, observed
from parity.capture.linen import below
from parity.capture.nnx import Method, aliased, target
from parity.capture.recorder import bind, unbind
from parity.capture.restore_nnx import as_given, kept_port
from parity.core.arrays import Array
from parity.core.calls import Call, LeafMatch, Match
from parity.core.metrics import unit_roundoff
from parity.core.store import Store
from parity.core.tree import (
    Flat,
    Skeleton,
    containers,
    flatten,
    hand_back,
    rebuild,
    statics,
    with_statics,
)
from parity.force.common import (
    Listener,
    Recording,
    Sides,
    Turns,
    by_port_leaf,
    forced_leaves,
    reference,
    values,
)

UNDER_TRANSFORMATION = "not measured: the port calls it under a JAX transformation"


@dataclass(frozen=True)
class Forced:
    """What is known of the port's calls after the run, by the `order` of the reference's.

    `problems` are why calls could not be seen. `calls` are those that may have been given something
    else that only the port has, as its own cache, than in the run that was recorded.
    """

    problems: Mapping[int, str]
    calls: Mapping[int, Call]


def force_port(sides: Sides, recording: Recording, listener: Listener) -> Forced:
    """What the run shows. Each call is passed to `listener`.

    The calls of `recording` are the port's. What it compiles by itself runs operation by operation
    here: values are replaced between its modules.
    """
    root, calls, modules = recording.root, recording.calls, sides.nnx_modules
    inner = {match.port.path for match in recording.matches[:-1]}
    taps = any(call.tapped for call in calls)
    if taps:  # their paths begin with those of whatever ran around them
        inner |= {call.path for call in calls if call.parent != -1}
    watched = {path: module for path, module in modules.items() if path in inner}
    forcing = _Forcing(recording, listener)
    eager = taps or any(call.traced for call in calls)
    with jax.disable_jit() if eager else nullcontext(), observed(watched, forcing):
        given = values(root, recording.store)
        output = flatten(repeat(modules[root.port.path], sides.nnx_method, root.port, given))
    listener(root, {}, _arrays(output))
    return Forced(forcing.problems, forcing.calls)


def repeat(
    module: nnx.Module,
    method: Method,
    call: Call,
    given: Sequence[np.ndarray[Any, Any]],
    *,
    streams: bool = True,
) -> Any:
    """Make a recorded call again, with `given` for its arrays; the module is left as it was.

    Without `streams` its random streams move on.
    """
    if call.arguments is None:
        raise ValueError(f"the arguments of {call.path!r} were not recorded")
    function = target(module, method)
    args, kwargs = unbind(function, rebuild(call.arguments, list(map(aliased, given))))
    objects = [value for _, value in flatten((args, kwargs)).statics]
    with kept_port(module, *objects, streams=streams), below(call.path):
        return function(*args, **kwargs)


class _Forcing(Observer):
    """Replaces what goes into each matched call and what comes out of it."""

    def __init__(self, recording: Recording, listener: Listener) -> None:
        super().__init__(recording.root.port.path)
        matches = {match.port.order: match for match in recording.matches}
        self._turns = Turns(matches, recording.calls)
        self._store, self._listener = recording.store, listener
        self.problems: dict[int, str] = {}
        self.calls: dict[int, Call] = {}

    def around(
        self, path: str, kind: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        match = self._turns.next(path)
        own = bind(function, args, kwargs)
        given = flatten(own)
        if match is None:
            return function(*args, **kwargs)
        if traced(given):
            self.problems[match.ref.order] = UNDER_TRANSFORMATION
            return function(*args, **kwargs)
        forced = forced_leaves(match)
        self._keep(match, given, forced)
        arguments = replaced(given, forced, self._store)
        args, kwargs = unbind(function, arguments)
        held, passed = (containers(tuple(one.values())) for one in (own, arguments))
        output = flatten(function(*args, **kwargs))
        hand_back(held, passed)
        self._listener(match, _arrays(given), _arrays(output))
        return replaced(output, by_port_leaf(match.outputs), self._store)

    def _keep(self, match: Match, given: Flat, forced: Mapping[str, LeafMatch]) -> None:
        """Keep what a call is given that only the port has, in the state in which it is."""
        call = match.port
        own = {name: array for name, array in given.arrays if name not in forced}
        recorded = [leaf.name for leaf in call.inputs if leaf.buffer]
        if call.arguments is None or recorded != [name for name, _ in given.arrays]:
            return
        inputs = tuple(
            replace(leaf, buffer=self._store.put(np.asarray(own[leaf.name])))
            if leaf.name in own
            else leaf
            for leaf in call.inputs
        )
        arguments = with_statics(given.skeleton, as_given)
        if inputs != call.inputs or _differ(arguments, call.arguments):
            self.calls[match.ref.order] = replace(call, inputs=inputs, arguments=arguments)

    def tapped(self, running: str, path: str, value: Any) -> Any:
        match, given = self._turns.next(path), flatten(value)
        if match is None:
            return value
        if traced(given):
            self.problems[match.ref.order] = UNDER_TRANSFORMATION
            return value
        self._listener(match, {}, _arrays(given))
        return replaced(given, by_port_leaf(match.outputs), self._store)


def replaced(flat: Flat, leaves: Mapping[str, LeafMatch], store: Store) -> Any:
    """The value with the reference's array for each of `leaves`, by the port's name.

    An array that is there twice, as the state and the output of a cell, stays one.
    """
    named: dict[str, Any] = {}
    for name, own in flat.arrays:
        if name in leaves:
            value = reference(leaves[name], store)
            named[name] = given_as(value, own) if value.shape == np.shape(own) else own
    twice = {id(own): named[name] for name, own in flat.arrays if name in named}
    arrays = [named.get(name, twice.get(id(own), own)) for name, own in flat.arrays]
    return rebuild(flat.skeleton, arrays)


def given_as(value: Array, own: Any) -> Any:
    """The reference's array in the port's type, unless that is coarser: the parent would be blamed
    for the rounding.
    """
    kept = np.dtype(getattr(own, "dtype", value.dtype))
    if kept.kind in "fV" and unit_roundoff(kept) > unit_roundoff(value.dtype) > 0:
        kept = value.dtype
    return aliased(value) if value.dtype == kept else jnp.asarray(value, kept)


def _differ(given: Skeleton, recorded: Skeleton) -> bool:
    """True if what is no array may not be what was recorded: plain values tell, of objects only
    the model's own are known to be the same.
    """
    own, other = list(statics(given)), list(statics(recorded))
    return len(own) != len(other) or any(
        not same_value(x, y) if isinstance(x, PLAIN) and isinstance(y, PLAIN) else x is not y
        for x, y in zip(own, other, strict=True)
    )


def traced(flat: Flat) -> bool:
    """True if an array, or a key, is an abstract value of a transformation."""
    leaves = (*flat.arrays, *flat.statics)
    return any(isinstance(value, jax.core.Tracer) for _, value in leaves)


def _arrays(flat: Flat) -> dict[str, Array]:
    return {name: np.asarray(value) for name, value in flat.arrays}
