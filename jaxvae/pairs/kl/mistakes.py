"""Known mistakes in ports of this model, for `parity selftest`: what a mistaken module returns.

Each is a function `(module, right, *args)`, where `right` is the method as it was.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxvae.pairs.mistakes import ACTIVATIONS, NORMS, Right, ends, made, shortcuts
from parity import Mistake

Weigh = Callable[[Array, Array], Array]


def _softmax(query: Array, key: Array) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision="highest")
    return jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1)


def _attention(
    weigh: Weigh = _softmax,
    norm: bool = True,
    shortcut: bool = True,
    order: tuple[int, int, int] = (0, 1, 2),
    flatten: Callable[[Array], Array] = lambda x: x,
) -> Callable[..., Any]:
    """Attention that weighs otherwise, leaves something out, or takes another for the query."""

    def mistaken(module: Any, right: Right, x: Array) -> Any:
        batch, height, width, channels = x.shape
        flat = flatten(x).reshape(batch, height * width, channels)
        normed = module.group_norm(flat) if norm else flat
        projected = [step(normed) for step in (module.to_q, module.to_k, module.to_v)]
        query, key, value = (projected[i][:, :, None] for i in order)
        weights = weigh(query, key)
        found = jnp.einsum("bhqk,bkhd->bqhd", weights, value, precision="highest")
        found = module.to_out[1](module.to_out[0](found.reshape(flat.shape))).reshape(x.shape)
        return found + x if shortcut else found

    return mistaken


def _unscaled(query: Array, key: Array) -> Array:
    return _softmax(query * query.shape[-1] ** 0.5, key)


def _over_queries(query: Array, key: Array) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision="highest")
    return jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-2)


def _uniform(query: Array, key: Array) -> Array:
    return jnp.full_like(_softmax(query, key), 1 / key.shape[1])


def _causal(query: Array, key: Array) -> Array:
    weights = jnp.tril(_softmax(query, key))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def _residual(combine: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    def mistaken(module: Any, right: Right, x: Array) -> Any:
        output = right(x)
        shortcut = x if module.conv_shortcut is None else module.conv_shortcut(x)
        return combine(output - shortcut, shortcut)

    return mistaken


def _padded_down(pads: tuple[tuple[int, int], ...], mode: str = "constant") -> Callable[..., Any]:
    return lambda module, right, x: module.conv(jnp.pad(x, ((0, 0), *pads, (0, 0)), mode=mode))


def _upsampled(enlarge: Callable[[Array], Any]) -> Callable[..., Any]:
    return lambda module, right, x: module.conv(enlarge(x))


def _smoothly(x: Array) -> Any:
    batch, height, width, channels = x.shape
    return jax.image.resize(x, (batch, 2 * height, 2 * width, channels), "linear")


def _no_attention(module: Any, right: Right, x: Array) -> Any:
    for resnet in module.resnets:
        x = resnet(x)
    return x


_COLUMNS_FIRST = _attention(flatten=lambda x: x.swapaxes(1, 2))
_END = ((0, 1), (0, 1))

MISTAKES: tuple[Mistake, ...] = (
    *made(
        ("Attention",),
        ("attention: scores not scaled", "attention_scale", _attention(_unscaled)),
        ("attention: softmax over the queries", "norm_axes", _attention(_over_queries)),
        ("attention: all positions alike", "attention_mask", _attention(_uniform)),
        ("attention: earlier positions only", "attention_mask", _attention(_causal)),
        ("attention: key and value exchanged", "attention_heads", _attention(order=(0, 2, 1))),
        ("attention: no norm", "not_called", _attention(norm=False)),
        ("attention: no shortcut", "glue", _attention(shortcut=False)),
        ("attention: columns before rows", "reshape_order glue", _COLUMNS_FIRST),
    ),
    *made(("UNetMidBlock2D",), ("mid block: no attention", "not_called", _no_attention)),
    *NORMS,
    *ACTIVATIONS,
    *shortcuts(("ResnetBlock2D",), _residual),
    *made(
        ("Downsample2D",),
        ("down: padded in front", "padding", _padded_down(((1, 0), (1, 0)))),
        ("down: padded on both sides", "padding", _padded_down(((1, 1), (1, 1)))),
        ("down: edge instead of zeros", "padding", _padded_down(_END, "edge")),
    ),
    *made(
        ("Upsample2D",),
        ("up: resized smoothly", "resize", _upsampled(_smoothly)),
        ("up: tiled", "reshape_order resize", _upsampled(lambda x: jnp.tile(x, (1, 2, 2, 1)))),
    ),
    *ends("AutoencoderKL"),
)
"""In the order of the model's parts."""
