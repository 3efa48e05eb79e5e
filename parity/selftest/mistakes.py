"""Known porting mistakes that any port can have: in its tensors, and in what a module returns.

A pair adds those of its own kinds of module (`Pair.mistakes`).
"""

import functools
import inspect
import itertools
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Shaped

from parity.capture.restore import Kept
from parity.core.pair import Mistake

Array = Shaped[np.ndarray, "..."]
Modules = Mapping[str, nnx.Module]
Wrong = Callable[..., Any]
"""`wrong(module, right, *args, **kwargs)` returns what the mistaken module does; `right` is the
method as it was."""


def behaviour(
    name: str,
    causes: Sequence[str],
    wrong: Wrong,
    kinds: Sequence[str] = (),
    applies: Callable[[nnx.Module], object] = lambda module: True,
    method: str = "__call__",
    cases: str = "*",
) -> Mistake:
    """Return a mistake in what a module of these classes, or of any, does where it applies."""

    def sites(modules: Modules) -> list[str]:
        return [
            path
            for path, module in modules.items()
            if (not kinds or type(module).__name__ in kinds)
            and applies(module)
            and (path or method != "__call__")  # the root may be called by another method
        ]

    @contextmanager
    def plant(modules: Modules, path: str, draw: random.Random) -> Iterator[tuple[str, ...]]:
        right = type(modules[path])
        function = getattr(right, method)

        @functools.wraps(function)
        def mistaken(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrong(self, functools.partial(function, self), *args, **kwargs)

        mine = type(right.__name__, (right,), {method: mistaken})
        object.__setattr__(modules[path], "__class__", mine)
        try:
            yield (path,)
        finally:
            object.__setattr__(modules[path], "__class__", right)

    return Mistake(name, tuple(causes), sites, plant, cases, tuple(_files(wrong)))


def _files(function: Any) -> dict[str, None]:
    """The files of a function, and of those that it is made of."""
    found = [x for x in Kept([function]).found.values() if isinstance(x, types.FunctionType)]
    return dict.fromkeys(map(inspect.getfile, found))


Change = Callable[[Array, random.Random], Array]


def tensor(name: str, cause: str, change: Change, fits: Callable[[str, Array], bool]) -> Mistake:
    """Return a mistake in a parameter of a module, drawn from those whose name and values fit."""

    def own(module: nnx.Module) -> list[nnx.Param[Any]]:
        return [p for key, p in _parameters(module) if fits(key, np.asarray(p[...]))]

    def sites(modules: Modules) -> list[str]:
        return [path for path, module in modules.items() if own(module)]

    @contextmanager
    def plant(modules: Modules, path: str, draw: random.Random) -> Iterator[tuple[str, ...]]:
        parameter = draw.choice(own(modules[path]))
        right = np.asarray(parameter[...])
        parameter[...] = jnp.asarray(np.ascontiguousarray(change(right, draw)))
        try:
            yield (path,)
        finally:
            parameter[...] = jnp.asarray(right)

    return Mistake(name, (cause,), sites, plant)


def _parameters(module: nnx.Module) -> list[tuple[str, nnx.Param[Any]]]:
    return [(key, p) for key, p in vars(module).items() if isinstance(p, nnx.Param)]


def exchanged(name: str, fits: Callable[[str, Array], bool]) -> Mistake:
    """Return the mistake that two tensors of the same size have each other's values."""

    def tensors(modules: Modules) -> dict[tuple[int, ...], list[tuple[str, nnx.Param[Any]]]]:
        groups: dict[tuple[int, ...], list[tuple[str, nnx.Param[Any]]]] = {}
        for path, module in modules.items():
            for key, parameter in _parameters(module):
                if fits(key, np.asarray(parameter[...])):
                    groups.setdefault(parameter[...].shape, []).append((path, parameter))
        return {shape: found for shape, found in groups.items() if len(found) > 1}

    def sites(modules: Modules) -> list[str]:
        found = itertools.chain.from_iterable(tensors(modules).values())
        return list(dict.fromkeys(path for path, _ in found))

    @contextmanager
    def plant(modules: Modules, path: str, draw: random.Random) -> Iterator[tuple[str, ...]]:
        groups = [found for found in tensors(modules).values() if path in dict(found)]
        group = draw.choice(groups)
        one = draw.choice([p for where, p in group if where == path])
        place, other = draw.choice([(where, p) for where, p in group if p is not one])
        left, right = one[...], other[...]
        one[...], other[...] = right, left
        try:
            yield tuple(dict.fromkeys((path, place)))
        finally:
            one[...], other[...] = left, right

    return Mistake(name, ("weights_swapped",), sites, plant)


def _kernel(key: str, values: Array) -> bool:
    return values.ndim > 1 and not _vector(key, values)


def _spatial(key: str, values: Array) -> bool:
    return values.ndim > 3 and max(values.shape[:-2]) > 1


def _square(key: str, values: Array) -> bool:
    return values.ndim > 1 and values.shape[-1] == values.shape[-2] > 1


def _vector(key: str, values: Array) -> bool:
    """Return true of what has a number by channel, and may have axes of size one beside it.

    A kernel of one channel has that form, too.
    """
    return key != "kernel" and values.size == max(values.shape, default=0) > 1


def _bias(key: str, values: Array) -> bool:
    return key == "bias" and _vector(key, values)


def _scale(key: str, values: Array) -> bool:
    return key != "bias" and _vector(key, values)


def _pairs(values: Array) -> list[tuple[int, int]]:
    """Axes of the same size above one, other than the last two."""
    axes = range(values.ndim - 2)
    return [(a, b) for a in axes for b in axes if a < b and values.shape[a] == values.shape[b] > 1]


def _swap_axes(values: Array, draw: random.Random) -> Array:
    return np.asarray(np.swapaxes(values, *draw.choice(_pairs(values))))


def _transposed(values: Array, draw: random.Random) -> Array:
    return np.swapaxes(values, -1, -2)


def _larger(values: Array, draw: random.Random) -> Array:
    return values * np.float32(1.05)


def _flip(values: Array, draw: random.Random) -> Array:
    return np.flip(values, draw.choice([i for i, n in enumerate(values.shape[:-2]) if n > 1]))


def _reshape(values: Array, draw: random.Random) -> Array:
    order = (values.ndim - 1, values.ndim - 2, *range(values.ndim - 2))  # PyTorch's
    return np.asarray(values.transpose(order).reshape(values.shape))


def _random(values: Array, draw: random.Random) -> Array:
    rng = np.random.default_rng(draw.getrandbits(32))
    return np.asarray(rng.standard_normal(values.shape) * values.std(), values.dtype)


def _round(kind: Any) -> Change:
    return lambda values, draw: np.asarray(jnp.asarray(values).astype(kind).astype(values.dtype))


def _one_nan(values: Array, draw: random.Random) -> Array:
    wrong = values.copy()
    wrong.flat[draw.randrange(values.size)] = np.nan
    return wrong


TENSORS = (
    tensor(
        "kernel, two axes swapped", "weights_layout", _swap_axes, lambda key, v: bool(_pairs(v))
    ),
    tensor("kernel, in and out swapped", "weights_layout", _transposed, _square),
    tensor("kernel, an axis flipped", "weights_layout", _flip, _spatial),
    tensor("kernel, reshaped and not permuted", "weights_layout", _reshape, _kernel),
    tensor("kernel, never loaded", "weights_missing", _random, _kernel),
    tensor("kernel, all zeros", "weights_missing", lambda v, draw: np.zeros_like(v), _kernel),
    tensor("kernel, five percent too large", "weights_value", _larger, _kernel),
    tensor("kernel, one entry NaN", "nonfinite", _one_nan, _kernel),
    tensor("kernel, rounded to bfloat16", "weights_precision", _round(jnp.bfloat16), _kernel),
    tensor("kernel, rounded to float16", "weights_precision", _round(jnp.float16), _kernel),
    tensor("bias, never loaded", "weights_missing", lambda v, draw: np.zeros_like(v), _bias),
    tensor("bias, in opposite order", "weights_layout", lambda v, draw: np.flip(v), _bias),
    tensor("scale, never loaded", "weights_missing", lambda v, draw: np.ones_like(v), _scale),
    exchanged("kernels of two layers swapped", _kernel),
    exchanged("vectors of the same size swapped", _vector),
)


def _first(change: Callable[[Any], Any]) -> Wrong:
    """Change the first array that a call returns: a cache behind it stays right."""

    def wrong(module: nnx.Module, right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = right(*args, **kwargs)
        if isinstance(output, tuple):
            return change(output[0]), *output[1:]
        return change(output)

    return wrong


def _rounded_operands(module: Any, right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Products in one bfloat16 pass, as a TPU makes them by default."""
    kernel = module.kernel[...]
    module.kernel[...] = _low(kernel)
    try:
        return right(*jax.tree.map(_low, args), **jax.tree.map(_low, kwargs))
    finally:
        module.kernel[...] = kernel


def _low(x: Any) -> Any:
    return x.astype(jnp.bfloat16).astype(x.dtype)


def _multiplies(module: nnx.Module) -> bool:
    return "kernel" in dict(_parameters(module))


def _exchanged(x: Any) -> Any:
    return jnp.swapaxes(x, -2, -3)


_TURNS = itertools.count()
"""A random layer that was left on drops something else at each call."""


def _dropped(x: Any) -> Any:
    keep = np.random.default_rng(next(_TURNS)).random(x.shape) < 0.9
    return jnp.where(jnp.asarray(keep), x / 0.9, 0)


of_layer = functools.partial(behaviour, applies=_parameters)
"""A mistake in what a module that has parameters of its own does."""

OUTPUTS = (
    behaviour("output one percent too large", ["scale_or_offset"], _first(lambda x: x * 1.01)),
    behaviour("output with an offset", ["scale_or_offset"], _first(lambda x: x + 0.05)),
    behaviour("output with the other sign", ["scale_or_offset"], _first(lambda x: -x)),
    of_layer("output of another dtype", ["dtype"], _first(_low)),
    behaviour("dropout left on", ["dropout"], _first(_dropped)),
    of_layer("channels in opposite order", ["reshape_order"], _first(lambda x: x[..., ::-1])),
    of_layer("height and width exchanged", ["reshape_order"], _first(_exchanged)),
    behaviour("products in bfloat16", ["matmul_precision"], _rounded_operands, applies=_multiplies),
)

GENERAL = (*TENSORS, *OUTPUTS)
"""Mistakes that any port can have."""
