"""Known mistakes in ports of this model, for `parity selftest`: what a mistaken module returns.

Each is a function `(module, right, *args)`, where `right` is the method as it was.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxvae.models.wan.config import LATENTS_STD
from jaxvae.pairs.mistakes import ACTIVATIONS, Right, ends, given, made, shortcuts
from parity import Mistake


def _first_repeated(module: Any, right: Right, x: Array, cache_x: Any = None) -> Any:
    front = jnp.repeat(x[:, :1], module.time_pad, axis=1)
    return right(x, front if cache_x is None else cache_x)


def _padded_on_both_sides(module: Any, right: Right, x: Array, cache_x: Any = None) -> Any:
    half = module.time_pad // 2
    front = jnp.zeros_like(x[:, :half]) if cache_x is None else cache_x[:, half:]
    longer = jnp.concatenate([front, x, jnp.zeros_like(x[:, :half])], axis=1)
    return right(longer[:, module.time_pad :], longer[:, : module.time_pad])


def _cached(change: Callable[[Array], Any]) -> Callable[..., Any]:
    """A convolution that gets another cache."""

    def mistaken(module: Any, right: Right, x: Array, cache_x: Any = None) -> Any:
        return right(x, None if cache_x is None else change(cache_x))

    return mistaken


def _not_updated(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    output, new_cache = right(x, feat_cache)
    return output, feat_cache or new_cache


def _of_output(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    # cached after the second convolution, not before it
    output, new_cache = right(x, feat_cache)
    last = jnp.concatenate([jnp.zeros_like(output), output], axis=1)[:, -2:]
    return output, new_cache | {"conv2": last}


def _first_as_others(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    if feat_cache:
        return right(x, feat_cache)
    zeros = jnp.zeros((x.shape[0], 2, *x.shape[2:]), x.dtype)
    output, _ = right(x, {"time_conv": zeros})
    return output[:, ::2], {"time_conv": zeros}


def _first_frame_for_rep(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    output, new_cache = right(x, feat_cache)
    return output, new_cache if feat_cache else {"time_conv": jnp.repeat(x[:, -1:], 2, axis=1)}


def _frame_before_dropped(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    dropped = feat_cache and {"time_conv": jnp.zeros_like(feat_cache["time_conv"])}
    return right(x, dropped)


def _channels_tiled(module: Any, right: Right, x: Array, first_chunk: bool = False) -> Any:
    channels, repeats = x.shape[-1], module.repeats
    order = jnp.arange(channels).reshape(-1, repeats) if channels % repeats == 0 else None
    return right(x if order is None else x[..., order.T.reshape(-1)], first_chunk)


def _padded_behind(module: Any, right: Right, x: Array) -> Any:
    missing = -x.shape[1] % module.factor_t
    return right(jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0))))


def _frames_repeated(module: Any, right: Right, x: Array) -> Any:
    missing = -x.shape[1] % module.factor_t
    return right(jnp.concatenate([x[:, :1]] * missing + [x], axis=1))


def _corner_pixel(module: Any, right: Right, x: Array) -> Any:
    s = module.factor_s
    corner = jnp.repeat(jnp.repeat(x[:, :, ::s, ::s], s, axis=2), s, axis=3)
    return right(corner)


def _norm(scale: Callable[[Array, float], Any]) -> Callable[..., Any]:
    """A norm with another factor of gamma and the root of the channels."""

    def mistaken(module: Any, right: Right, x: Array) -> Any:
        length = jnp.sqrt(jnp.sum(jnp.square(x), -1, keepdims=True))
        gamma = module.gamma[...].reshape((1,) * (x.ndim - 1) + (-1,))
        return x / length * scale(gamma, x.shape[-1] ** 0.5)

    return mistaken


def _attention(
    axis: int = -1, scaled: bool = True, order: tuple[int, ...] = (0, 1, 2), rows: bool = False
) -> Callable[..., Any]:
    """Attention with a softmax along another axis, other parts, or only inside of rows."""

    def mistaken(module: Any, right: Right, x: Array) -> Any:
        height, width, channels = x.shape[2:]
        qkv = module.to_qkv(module.norm(x.reshape(-1, height, width, channels)))
        qkv = qkv.reshape(-1, width if rows else height * width, 3 * channels)
        parts = jnp.split(qkv, 3, axis=-1)
        query, key, value = (parts[i] for i in order)
        scores = jnp.einsum("nqc,nkc->nqk", query, key, precision="highest")
        weights = jax.nn.softmax(scores * (channels**-0.5 if scaled else 1.0), axis=axis)
        found = jnp.einsum("nqk,nkc->nqc", weights, value, precision="highest")
        return module.proj(found.reshape(-1, height, width, channels)).reshape(x.shape) + x

    return mistaken


def _residual(combine: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    def mistaken(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
        output, new_cache = right(x, feat_cache)
        shortcut = module.conv_shortcut(x)
        return combine(output - shortcut, shortcut), new_cache

    return mistaken


def _no_average(module: Any, right: Right, x: Array, feat_cache: Any = None) -> Any:
    output, new_cache = right(x, feat_cache)
    return output - module.avg_shortcut(x), new_cache


def _smoothly(module: Any, right: Right, x: Array) -> Any:
    frames, height, width, channels = x.shape
    return jax.image.resize(x, (frames, 2 * height, 2 * width, channels), "linear")


def _padded(pads: tuple[tuple[int, int], ...], mode: str = "constant") -> Callable[..., Any]:
    return lambda module, right, x: jnp.pad(x, ((0, 0), *pads, (0, 0)), mode=mode)


def _scaled(z: Array) -> Array:
    return z * jnp.asarray((LATENTS_STD * z.shape[-1])[: z.shape[-1]], z.dtype).reshape(
        1, 1, 1, 1, -1
    )


VAE = "AutoencoderKLWan"

MISTAKES: tuple[Mistake, ...] = (
    *made(
        ("CausalConv3d",),
        ("causal: first frame repeated in front", "padding unknown", _first_repeated),
        ("causal: padded on both sides", "causal_side", _padded_on_both_sides),
        ("causal: cache dropped", "cache", _cached(jnp.zeros_like)),
        ("causal: cache in opposite order", "cache", _cached(lambda past: past[:, ::-1])),
        where=lambda module: module.time_pad > 0,
    ),
    *made(
        ("ResidualBlock",),
        ("resnet: frame cache not updated", "glue", _not_updated),
        ("resnet: cache of the output", "glue", _of_output),
    ),
    *shortcuts(("ResidualBlock",), _residual),
    *made(
        ("Resample",),
        ("time up: first chunk as others", "glue unknown", _first_as_others),
        ("time up: first frame in the place of Rep", "glue", _first_frame_for_rep),
        where=lambda module: module.mode == "upsample3d",
    ),
    *made(
        ("Resample",),
        ("time down: frame cache not updated", "glue", _not_updated),
        ("time down: frame before dropped", "cache", _frame_before_dropped),
        where=lambda module: module.mode == "downsample3d",
    ),
    *made(("DupUp3D",), ("repeat: channels tiled", "reshape_order unknown", _channels_tiled)),
    *made(("ResidualDownBlock",), ("down block: no shortcut of means", "glue", _no_average)),
    *made(
        ("AvgDown3D",),
        ("mean: zeros behind", "causal_side reshape_order", _padded_behind),
        ("mean: first frame repeated", "padding reshape_order", _frames_repeated),
        where=lambda module: module.factor_t > 1,
    ),
    *made(
        ("AvgDown3D",),
        ("mean: one pixel of four", "pooling unknown", _corner_pixel),
        where=lambda module: module.factor_s > 1,
    ),
    *made(
        ("RMSNorm",),
        ("norm: no gamma", "scale_or_offset", _norm(lambda gamma, root: root)),
        ("norm: no root of the channels", "scale_or_offset", _norm(lambda gamma, root: gamma)),
        (
            "norm: gamma counted from one",
            "scale_or_offset unknown",
            _norm(lambda gamma, root: root * (1 + gamma)),
        ),
    ),
    *made(
        ("AttentionBlock",),
        ("attention: softmax over the queries", "norm_axes", _attention(axis=-2)),
        ("attention: inside of rows", "glue", _attention(rows=True)),
        ("attention: scores not scaled", "attention_scale", _attention(scaled=False)),
        ("attention: key and value exchanged", "attention_heads", _attention(order=(0, 2, 1))),
    ),
    *ACTIVATIONS,
    *made(
        ("ZeroPad2d",),
        ("down: padded in front", "padding", _padded(((1, 0), (1, 0)))),
        ("down: edge instead of zeros", "padding", _padded(((0, 1), (0, 1)), "edge")),
    ),
    *made(
        ("Upsample",),
        ("up: resized smoothly", "resize", _smoothly),
        ("up: tiled", "reshape_order resize", lambda _, right, x: jnp.tile(x, (1, 2, 2, 1))),
    ),
    # the whole passes chunks on: what is wrong with them shows in what its parts are given
    *(replace(one, causes=(*one.causes, "glue")) for one in ends(VAE, given(_scaled))),
)
"""In the order of the model's parts."""
