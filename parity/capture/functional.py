"""A port that is a plain function over nested parameters, as a module of NNX."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from parity.core.exceptions import InputError
from parity.core.tree import flatten, rebuild


class Params(nnx.Module):
    """The parameters under one name, and those nested below it; it never runs."""


class Functional(nnx.Module):
    """`function(params, *args, **kwargs)` with its parameters, for `parity.compare`.

    `params` is an array or nests arrays in dicts, lists, tuples or dataclasses. Each has the keys
    that lead to it as its name, `layers.0.attn.kernel`, and counts as a weight of the reference's
    module of that path, or of the one that `rename=` says. What the function does inside is seen
    at its taps: see `parity.tap`.

    Raises:
        InputError: `params` holds no array, or two parameters have one name.
    """

    def __init__(self, function: Callable[..., Any], params: Any) -> None:
        if not callable(function):
            raise InputError(f"Functional: expected a function, found a {type(function).__name__}")
        flat = flatten(params)
        if not flat.arrays:
            kind = type(params).__name__
            raise InputError(f"Functional: expected parameters that hold arrays, found a {kind}")
        self._function = function
        self._skeleton = flat.skeleton
        self._names = tuple(name or "params" for name, _ in flat.arrays)
        self.held = Params()
        for name, (_, array) in zip(self._names, flat.arrays, strict=True):
            self._add(name, array)

    @property
    def params(self) -> Any:
        """The parameters, nested as they were given, with their values of now."""
        return rebuild(self._skeleton, [self._at(name.split("."))[...] for name in self._names])

    def function(self) -> Callable[..., Any]:
        """The function of the arguments alone: its signature names them."""
        return functools.partial(self._function, self.params)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on these arguments, with the parameters before them."""
        return self.function()(*args, **kwargs)

    def _add(self, name: str, array: Any) -> None:
        holder: Any = self.held
        *path, own = name.split(".")
        for i, part in enumerate(path):
            if part not in vars(holder):
                setattr(holder, part, Params())
            holder = vars(holder)[part]
            if not isinstance(holder, Params):
                prefix = ".".join(path[: i + 1])
                raise InputError(
                    f"Functional: {prefix!r} is a parameter and holds {name!r}; rename one"
                )
        if own in vars(holder):
            raise InputError(f"Functional: two parameters are named {name!r}; rename one")
        setattr(holder, own, nnx.Param(jnp.asarray(array)))

    def _at(self, keys: list[str]) -> Any:
        return functools.reduce(lambda holder, key: vars(holder)[key], keys, self.held)
