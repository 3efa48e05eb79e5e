"""Known mistakes in ports of this model, for `parity selftest`: what a mistaken module returns.

Each is a function `(module, right, *args)`, where `right` is the method as it was. Most were made
by an earlier port or are easily made: see the names.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxvae.layers.resize import nearest_resize
from jaxvae.pairs.mistakes import ACTIVATIONS, NORMS, Right, ends, made, norm, shortcuts
from parity import Mistake


def _in_front(module: Any, conv_cache: Any, inputs: Array) -> Any:
    first = jnp.repeat(inputs[:, :1], module.time_pad, axis=1)
    return first if conv_cache is None else conv_cache


def _zeros_in_front(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    if conv_cache is not None:
        return right(inputs, conv_cache=conv_cache)
    zeros = jnp.zeros_like(jnp.repeat(inputs[:, :1], module.time_pad, axis=1))
    return module.conv(jnp.concatenate([zeros, inputs], 1)), _cache(module, None, inputs)


def _padded_behind(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    longer = jnp.concatenate([inputs, _in_front(module, conv_cache, inputs)], axis=1)
    return module.conv(longer), _cache(module, conv_cache, inputs)


def _padded_on_both_sides(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    front, half = _in_front(module, conv_cache, inputs), module.time_pad // 2
    behind = jnp.repeat(inputs[:, -1:], half, axis=1)
    longer = jnp.concatenate([front[:, half:], inputs, behind], axis=1)
    return module.conv(longer), _cache(module, conv_cache, inputs)


def _cache(module: Any, conv_cache: Any, inputs: Array) -> Array:
    front = _in_front(module, conv_cache, inputs)
    return jnp.concatenate([front, inputs], axis=1)[:, -module.time_pad :]


def _edge_in_space(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    pads = [(n, n) for n in module.conv.padding]
    longer = jnp.concatenate([_in_front(module, conv_cache, inputs), inputs], axis=1)
    padded = jnp.pad(longer, ((0, 0), *pads, (0, 0)), mode="edge")
    inner = tuple(slice(n, -n or None) for n, _ in pads)
    output = module.conv(padded)
    return output[:, inner[0], inner[1], inner[2]], _cache(module, conv_cache, inputs)


def _no_cache(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    return right(inputs, conv_cache=None)


def _cache_in_opposite_order(
    module: Any, right: Right, inputs: Array, conv_cache: Any = None
) -> Any:
    return right(inputs, conv_cache=None if conv_cache is None else conv_cache[:, ::-1])


def _cache_one_frame_early(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    output, _ = right(inputs, conv_cache=conv_cache)
    longer = jnp.concatenate([_in_front(module, conv_cache, inputs), inputs], axis=1)
    return output, longer[:, -module.time_pad - 1 : -1]


def _stale_cache(module: Any, right: Right, inputs: Array, conv_cache: Any = None) -> Any:
    output, cache = right(inputs, conv_cache=conv_cache)
    return output, jnp.repeat(inputs[:, :1], module.time_pad, axis=1) + 0 * cache


def _resized(f: Array, zq: Array) -> Any:
    apart = f.shape[1] > 1 and f.shape[1] % 2 == 1
    return nearest_resize(zq, f.shape[1:4], first_apart=apart)


def _resized_smoothly(f: Array, zq: Array) -> Any:
    def resize(x: Array, frames: int) -> Any:
        return jax.image.resize(x, (x.shape[0], frames, *f.shape[2:4], x.shape[-1]), "linear")

    if f.shape[1] > 1 and f.shape[1] % 2 == 1:
        parts = [resize(zq[:, :1], 1), resize(zq[:, 1:], f.shape[1] - 1)]
        return jnp.concatenate(parts, axis=1)
    return resize(zq, f.shape[1])


def _spatial(
    resize: Callable[[Array, Array], Any] = _resized,
    combine: Callable[..., Any] = lambda normed, scale, shift, f: normed * scale + shift,
) -> Callable[..., Any]:
    """A spatial norm that resizes the latent otherwise, or combines otherwise what it has."""

    def mistaken(module: Any, right: Right, f: Array, zq: Array, conv_cache: Any = None) -> Any:
        zq = resize(f, zq)
        scale, one = module.conv_y(zq)
        shift, other = module.conv_b(zq)
        output = combine(module.norm_layer(f), scale, shift, f)
        return output, {"conv_y": one, "conv_b": other}

    return mistaken


def _residual(combine: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    def mistaken(
        module: Any, right: Right, inputs: Array, temb: Any, zq: Any, conv_cache: Any = None
    ) -> Any:
        output, cache = right(inputs, temb, zq, conv_cache=conv_cache)
        shortcut = inputs if module.conv_shortcut is None else module.conv_shortcut(inputs)
        return combine(output - shortcut, shortcut), cache

    return mistaken


def _pool(module: Any, x: Array, pairs: Callable[[Array], Array]) -> Array:
    """The downsampler with another mean of pairs, (b, t, 2, h, w, c) to (b, t, h, w, c)."""
    odd = x.shape[1] % 2
    joined = x[:, odd:].reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:])
    return jnp.concatenate([x[:, :odd], pairs(joined)], axis=1)


def _down(module: Any, x: Array, pads: tuple[tuple[int, int], ...], mode: str = "constant") -> Any:
    x = jnp.pad(x, ((0, 0), (0, 0), *pads, (0, 0)), mode=mode)
    frames = module.conv(x.reshape(-1, *x.shape[2:]))
    return frames.reshape(*x.shape[:2], *frames.shape[1:])


END = ((0, 1), (0, 1))


def _pooled(pairs: Callable[[Array], Array]) -> Callable[..., Any]:
    return lambda module, right, x: _down(module, _pool(module, x, pairs), END)


def _pooled_without_transpose(module: Any, right: Right, x: Array) -> Any:
    b, t, h, w, c = x.shape
    mixed = x.reshape(b * h * w, t, c)
    rest = mixed[:, t % 2 :].reshape(b * h * w, t // 2, 2, c).mean(2)
    mixed = jnp.concatenate([mixed[:, : t % 2], rest], axis=1)
    return _down(module, mixed.reshape(b, -1, h, w, c), END)


def _last_frame_apart(module: Any, right: Right, x: Array) -> Any:
    if x.shape[1] % 2 == 0:
        return right(x)
    even = _pool(module, x[:, :-1], lambda pairs: jnp.mean(pairs, axis=2))
    return _down(module, jnp.concatenate([even, x[:, -1:]], axis=1), END)


def _padded_down(pads: tuple[tuple[int, int], ...], mode: str = "constant") -> Callable[..., Any]:
    def mistaken(module: Any, right: Right, x: Array) -> Any:
        if module.compress_time:
            x = _pool(module, x, lambda pairs: jnp.mean(pairs, axis=2))
        return _down(module, x, pads, mode)

    return mistaken


def _up(module: Any, x: Array) -> Any:
    frames = module.conv(x.reshape(-1, *x.shape[2:]))
    return frames.reshape(*x.shape[:2], *frames.shape[1:])


def _larger(module: Any, x: Array) -> tuple[int, int, int]:
    frames = x.shape[1]
    if module.compress_time and frames > 1:
        frames = 2 * frames - frames % 2
    return frames, 2 * x.shape[2], 2 * x.shape[3]


def _upsampled_as_one(module: Any, right: Right, x: Array) -> Any:
    return _up(module, nearest_resize(x, _larger(module, x)))


def _upsampled(enlarge: Callable[[Array], Any]) -> Callable[..., Any]:
    """An upsampler that doubles height and width otherwise."""

    def mistaken(module: Any, right: Right, x: Array) -> Any:
        frames, *_ = _larger(module, x)
        apart = frames > x.shape[1] and x.shape[1] % 2 == 1
        return _up(module, enlarge(nearest_resize(x, (frames, *x.shape[2:4]), first_apart=apart)))

    return mistaken


def _smoothly(x: Array) -> Any:
    b, t, h, w, c = x.shape
    return jax.image.resize(x, (b, t, 2 * h, 2 * w, c), "linear")


_compresses, _looks_back = attrgetter("compress_time"), attrgetter("time_pad")
_EACH_FRAME = norm(lambda rank: (*range(2, rank - 2), rank - 1))
_TILED = _upsampled(lambda x: jnp.tile(x, (1, 1, 2, 2, 1)))
_SHIFT_AS_SCALE = _spatial(combine=lambda normed, scale, shift, f: normed * shift + scale)
_NOT_NORMALISED = _spatial(combine=lambda normed, scale, shift, f: f * scale + shift)
_AS_ONE = _spatial(lambda f, zq: nearest_resize(zq, f.shape[1:4]))

MISTAKES: tuple[Mistake, ...] = (
    *made(
        ("CausalConv3d",),
        ("causal: zeros in front", "padding", _zeros_in_front),
        ("causal: padded behind", "causal_side", _padded_behind),
        ("causal: padded on both sides", "causal_side", _padded_on_both_sides),
        ("causal: edge instead of zeros", "padding", _edge_in_space),
        ("causal: cache dropped", "cache", _no_cache),
        ("causal: cache in opposite order", "cache", _cache_in_opposite_order),
        ("causal: cache one frame early", "cache", _cache_one_frame_early),
        ("causal: cache of the first frame", "cache", _stale_cache),
        where=_looks_back,
    ),
    *NORMS,
    *made(("GroupNorm",), ("norm: statistics of each frame", "norm_axes", _EACH_FRAME)),
    *made(
        ("SpatialNorm3D",),
        ("spatial norm: first frame not apart", "resize glue", _AS_ONE),
        ("spatial norm: resized smoothly", "resize", _spatial(_resized_smoothly)),
        ("spatial norm: scale and shift exchanged", "glue", _SHIFT_AS_SCALE),
        ("spatial norm: not normalised", "glue", _NOT_NORMALISED),
    ),
    *ACTIVATIONS,
    *shortcuts(("ResnetBlock3D",), _residual),
    *made(
        ("Downsample3D",),
        ("down: pooled without the transpose", "reshape_order", _pooled_without_transpose),
        ("down: every second frame", "pooling", _pooled(lambda x: x[:, :, 0])),
        ("down: maximum of pairs", "pooling", _pooled(lambda x: jnp.max(x, 2))),
        ("down: sum of pairs", "pooling scale_or_offset", _pooled(lambda x: jnp.sum(x, 2))),
        ("down: last frame apart", "pooling glue", _last_frame_apart),
        where=_compresses,
    ),
    *made(
        ("Downsample3D",),
        ("down: padded in front", "padding", _padded_down(((1, 0), (1, 0)))),
        ("down: padded on both sides", "padding", _padded_down(((1, 1), (1, 1)))),
        ("down: edge instead of zeros", "padding", _padded_down(END, "edge")),
    ),
    *made(
        ("Upsample3D",),
        ("up: first frame not apart", "resize glue", _upsampled_as_one),
        where=_compresses,
    ),
    *made(
        ("Upsample3D",),
        ("up: resized smoothly", "resize", _upsampled(_smoothly)),
        ("up: tiled", "reshape_order resize", _TILED),
    ),
    *ends("AutoencoderKLCogVideoX"),
)
"""In the order of the model's parts."""
