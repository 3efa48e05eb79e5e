"""Known mistakes that all autoencoders can have: norms, activations, shortcuts, inputs and outputs.

Each is a function `(module, right, *args)`, where `right` is the method as it was.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxvae.models.posterior import DiagonalGaussian
from parity import Mistake, behaviour

Right = Callable[..., Any]


def made(
    kinds: tuple[str, ...],
    *rows: tuple[str, str, Callable[..., Any]],
    where: Callable[[Any], bool] = lambda module: True,
    method: str = "__call__",
) -> tuple[Mistake, ...]:
    """Return mistakes of these classes, in modules that `where` chooses, by one method.

    A row is a name, causes (words, any of which is right), and what the mistaken module does.
    """
    cases = "*" if method == "__call__" else f"{method}/*"
    return tuple(
        behaviour(name, causes.split(), call, kinds, where, method, cases)
        for name, causes, call in rows
    )


def _normalised(x: Array, axes: tuple[int, ...], eps: float, spare: int = 0) -> Array:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    x = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.sum(x * x, axes, keepdims=True) / (count - spare)
    return x * lax.rsqrt(variance + eps)


def _group(rank: int) -> tuple[int, ...]:
    """The axes of a group's statistics in (b, *positions, groups, channels)."""
    return (*range(1, rank - 2), rank - 1)


def _but_groups(rank: int) -> tuple[int, ...]:
    return tuple(range(1, rank - 1))


def norm(
    axes: Callable[[int], tuple[int, ...]] = _group,
    eps: float | None = None,
    spare: int = 0,
    affine: bool = True,
    interleaved: bool = False,
) -> Callable[..., Any]:
    """Return a group norm over other axes of that rank, or with another setting."""

    def mistaken(module: Any, right: Right, x: Array) -> Any:
        parts = (-1, module.num_groups) if interleaved else (module.num_groups, -1)
        grouped = x.reshape(*x.shape[:-1], *parts)
        over = axes(grouped.ndim)
        normed = _normalised(grouped, over, eps or module.eps, spare).reshape(x.shape)
        if not affine:
            return normed
        row = (1,) * (x.ndim - 1) + (-1,)
        return normed * module.scale[...].reshape(row) + module.bias[...].reshape(row)

    return mistaken


def _norm_scaled_from_one(module: Any, right: Right, x: Array) -> Any:
    return right(x) + norm(affine=False)(module, right, x)


NORMS = made(
    ("GroupNorm",),
    ("norm: PyTorch's default epsilon", "epsilon", norm(eps=1e-5)),
    ("norm: epsilon of 1e-3", "epsilon", norm(eps=1e-3)),
    ("norm: statistics of each position", "norm_axes", norm(lambda rank: (rank - 1,))),
    ("norm: groups interleaved", "norm_axes", norm(_but_groups, interleaved=True)),
    ("norm: variance over n - 1", "norm_variance", norm(spare=1)),
    ("norm: no scale and bias", "scale_or_offset", norm(affine=False)),
    ("norm: scale counted from one", "scale_or_offset", _norm_scaled_from_one),
    where=lambda module: module.num_groups > 1,
)


def _other(function: Callable[[Array], Array]) -> Callable[..., Any]:
    return lambda module, right, x: function(x)


ACTIVATIONS = made(
    ("SiLU",),
    ("activation: GELU", "activation", _other(jax.nn.gelu)),
    ("activation: ReLU", "activation", _other(jax.nn.relu)),
    ("activation: none", "activation", _other(lambda x: x)),
)


def shortcuts(kinds: tuple[str, ...], residual: Callable[..., Any]) -> tuple[Mistake, ...]:
    """Return mistakes of resnets; `residual(combine)` is one that combines both paths otherwise."""
    halved = residual(lambda x, shortcut: (x + shortcut) / 2**0.5)
    return made(
        kinds,
        ("resnet: no shortcut", "glue", residual(lambda x, shortcut: x)),
        ("resnet: shortcut subtracted", "glue", residual(lambda x, shortcut: x - shortcut)),
        ("resnet: shortcut divided by sqrt(2)", "scale_or_offset", halved),
    )


def _moments_exchanged(module: Any, right: Right, x: Array, **options: Any) -> Any:
    moments = right(x, **options).parameters
    mean, logvar = jnp.split(moments, 2, axis=-1)
    return DiagonalGaussian(jnp.concatenate([logvar, mean], axis=-1))


def given(change: Callable[[Array], Array]) -> Callable[..., Any]:
    """Return a method that gets something else than it is given."""
    return lambda module, right, x, **options: right(change(x), **options)


def _scaled_twice(module: Any, right: Right, z: Array, **options: Any) -> Any:
    return right(z / module.config.scaling_factor, **options)


def _clipped(module: Any, right: Right, z: Array, **options: Any) -> Any:
    return jnp.clip(right(z, **options), 0, 1)


def ends(model: str, scaled: Callable[..., Any] = _scaled_twice) -> tuple[Mistake, ...]:
    """Return mistakes in what this class is given, or returns; `scaled` scales the latents too."""
    encoded = made(
        (model,),
        ("encode: halves of the moments exchanged", "reshape_order", _moments_exchanged),
        ("encode: values from 0 to 1", "scale_or_offset", given(lambda x: (x + 1) / 2)),
        ("encode: colours in opposite order", "reshape_order", given(lambda x: x[..., ::-1])),
        method="encode",
    )
    decoded = made(
        (model,),
        ("decode: latents scaled twice", "scale_or_offset", scaled),
        ("decode: clipped to [0, 1]", "clamp", _clipped),
        method="decode",
    )
    return encoded + decoded
