"""Modules of Flax Linen inside a port that wraps them with `nnx.bridge.ToNNX`.

Linen makes them anew for every call, from variables that the wrapper holds in nested dicts: the
paths of these are the modules' paths. So a Linen module without variables is not known before it
runs, and what it does counts with the module around it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import linen, nnx
from flax.nnx.bridge.variables import nnx_attrs_to_linen_vars

_below: ContextVar[str | None] = ContextVar("below", default=None)


@contextmanager
def below(path: str) -> Iterator[None]:
    """In the block, paths of Linen modules count from the port's module at `path`."""
    token = _below.set(path)
    try:
        yield
    finally:
        _below.reset(token)


def path_of(module: linen.Module) -> str | None:
    """The path in the port of a Linen module that is being called; `None` of one that has none.

    The outermost is the wrapper, whose call is observed anyway.
    """
    top = _below.get()
    if top is None or module.scope is None or not module.path:
        return None
    return ".".join([*([top] if top else []), *module.path])


class Part(nnx.Module):
    """A Linen module by the wrapper and the keys that its variables have there."""

    def __init__(self, owner: nnx.bridge.ToNNX, keys: tuple[str, ...]) -> None:
        self.owner = owner
        self.keys = keys
        self._seen = _Seen()

    def remember(self, module: linen.Module) -> None:
        """Keep how it is made: this is it, in a call."""
        if self._seen.module is None:
            self._seen.module = module.unbind()[0]
            self._seen.place = _place(module)

    def variables(self) -> dict[str, nnx.Variable[Any]]:
        """Its own, without those of modules inside it."""
        held = _at(_held(self.owner), self.keys)
        return {name: value for name, value in held.items() if isinstance(value, nnx.Variable)}

    def function(self) -> Callable[..., Any]:
        """Its call, with the variables of now; it must have been seen once."""
        module = self._seen.module
        assert module is not None

        @functools.wraps(module.__call__)
        def call(*args: Any, **kwargs: Any) -> Any:
            collections = nnx_attrs_to_linen_vars(_held(self.owner))
            variables = {name: self._seen.place.of(held) for name, held in collections.items()}
            return module.apply(variables, *args, rngs=_keys(self.owner), **kwargs)

        return call


@dataclass(frozen=True)
class _Place:
    """Where the variables of a module are: at these keys, and of what was `given` to it, elsewhere.

    Made anew by itself, a module has those variables under the names of its own attributes.
    """

    keys: tuple[str, ...] = ()
    given: Mapping[str, "_Place"] = field(default_factory=dict)

    def of(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Its variables, of nested dicts of all."""
        given = {name: place.of(held) for name, place in self.given.items()}
        return {**_at(held, self.keys), **{name: one for name, one in given.items() if one}}


def _place(module: linen.Module) -> _Place:
    bound: Any = module
    fields = (one.name for one in dataclasses.fields(bound) if one.name != "parent")
    held = (one for name in fields for one in _modules(name, getattr(module, name)))
    return _Place(
        module.path,
        {name: _place(one) for name, one in held if one.path[:-1] != module.path},
    )


def _modules(name: str, value: Any) -> Iterator[tuple[str, linen.Module]]:
    """The bound modules in an attribute, by the names that Linen gives them there."""
    if isinstance(value, linen.Module):
        if value.scope is not None:
            yield name, value
    elif isinstance(value, (list, tuple, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in items:
            yield from _modules(f"{name}_{key}", one)


class _Seen:
    """A module that a call showed, which may be inside a JAX transformation."""

    module: linen.Module | None = None
    place = _Place()


def parts(owner: nnx.bridge.ToNNX) -> dict[str, Part]:
    """Every module inside a wrapped one that has variables, by dotted path from there."""
    found: dict[str, Part] = {}

    def visit(held: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for name, value in held.items():
            if isinstance(value, dict):
                found[".".join((*keys, name))] = Part(owner, (*keys, name))
                visit(value, (*keys, name))

    visit(_held(owner), ())
    return found


def _held(owner: nnx.bridge.ToNNX) -> dict[str, Any]:
    """The variables of the wrapped module."""
    harness = ("to_nnx__", "_pytree__")
    return {name: value for name, value in vars(owner).items() if not name.startswith(harness)}


def _at(held: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Any]:
    """The value that nested dicts hold there; nothing if a key is missing."""
    for key in keys:
        held = held.get(key, {})
    return held


def _keys(owner: nnx.bridge.ToNNX) -> dict[str, jax.Array]:
    """A key for each random stream of the wrapper, which does not move on, as it names them."""
    streams = owner.to_nnx__rngs
    if streams is None:
        return {}
    keys = {name: stream() for name, stream in nnx.clone(streams).items()}
    if "params" not in keys and "default" in keys:
        keys["params"] = keys.pop("default")
    return keys
