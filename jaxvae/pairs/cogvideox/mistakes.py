"""Known mistakes in ports of this model, for `parity selftest`: what a mistaken module returns.

Each is a function `(module, right, *args)`, where `right` is the method as it was. Most were made
by an earlier port or are easily made: see the names.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxvae.layers.resize import nearest_resize
from jaxvae.models.posterior import DiagonalGaussian
from parity import Mistake, behaviour

Right = Callable[..., Any]


def _wrong(
    name: str,
    causes: tuple[str, ...],
    kinds: tuple[str, ...],
    call: Callable[..., Any],
    where: Callable[[Any], bool] = lambda module: True,
    method: str = "__call__",
) -> Mistake:
    """A mistake that is made in these classes, in modules that `where` chooses, by one method."""
    cases = "*" if method == "__call__" else f"{method}/*"
    return behaviour(name, causes, call, kinds, where, method, cases)


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


def _normalised(x: Array, axes: tuple[int, ...], eps: float, spare: int = 0) -> Array:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    x = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.sum(x * x, axes, keepdims=True) / (count - spare)
    return x * lax.rsqrt(variance + eps)


def _affine(module: Any, x: Array) -> Any:
    row = (1,) * (x.ndim - 1) + (-1,)
    return x * module.scale[...].reshape(row) + module.bias[...].reshape(row)


def _norm(
    axes: tuple[int, ...] = (1, 2, 3, 5),
    eps: float | None = None,
    spare: int = 0,
    affine: bool = True,
    interleaved: bool = False,
) -> Callable[..., Any]:
    """A norm over other axes of (b, t, h, w, groups, channels), or with another setting."""

    def wrong(module: Any, right: Right, x: Array) -> Any:
        parts = (-1, module.num_groups) if interleaved else (module.num_groups, -1)
        grouped = x.reshape(*x.shape[:-1], *parts)
        normed = _normalised(grouped, axes, eps or module.eps, spare).reshape(x.shape)
        return _affine(module, normed) if affine else normed

    return wrong


def _norm_scaled_from_one(module: Any, right: Right, x: Array) -> Any:
    return right(x) + _norm(affine=False)(module, right, x)


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

    def wrong(module: Any, right: Right, f: Array, zq: Array, conv_cache: Any = None) -> Any:
        zq = resize(f, zq)
        scale, one = module.conv_y(zq)
        shift, other = module.conv_b(zq)
        output = combine(module.norm_layer(f), scale, shift, f)
        return output, {"conv_y": one, "conv_b": other}

    return wrong


def _other_activation(function: Callable[[Array], Array]) -> Callable[..., Any]:
    return lambda module, right, x: function(x)


def _residual(combine: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    def wrong(
        module: Any, right: Right, inputs: Array, temb: Any, zq: Any, conv_cache: Any = None
    ) -> Any:
        output, cache = right(inputs, temb, zq, conv_cache=conv_cache)
        shortcut = inputs if module.conv_shortcut is None else module.conv_shortcut(inputs)
        return combine(output - shortcut, shortcut), cache

    return wrong


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
    def wrong(module: Any, right: Right, x: Array) -> Any:
        if module.compress_time:
            x = _pool(module, x, lambda pairs: jnp.mean(pairs, axis=2))
        return _down(module, x, pads, mode)

    return wrong


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

    def wrong(module: Any, right: Right, x: Array) -> Any:
        frames, *_ = _larger(module, x)
        apart = frames > x.shape[1] and x.shape[1] % 2 == 1
        return _up(module, enlarge(nearest_resize(x, (frames, *x.shape[2:4]), first_apart=apart)))

    return wrong


def _smoothly(x: Array) -> Any:
    b, t, h, w, c = x.shape
    return jax.image.resize(x, (b, t, 2 * h, 2 * w, c), "linear")


def _moments_exchanged(module: Any, right: Right, x: Array, **options: Any) -> Any:
    moments = right(x, **options).parameters
    mean, logvar = jnp.split(moments, 2, axis=-1)
    return DiagonalGaussian(jnp.concatenate([logvar, mean], axis=-1))


def _given(change: Callable[[Array], Array]) -> Callable[..., Any]:
    return lambda module, right, x, **options: right(change(x), **options)


def _scaled_twice(module: Any, right: Right, z: Array, **options: Any) -> Any:
    return right(z / module.config.scaling_factor, **options)


def _clipped(module: Any, right: Right, z: Array, **options: Any) -> Any:
    return jnp.clip(right(z, **options), 0, 1)


_compresses, _looks_back = attrgetter("compress_time"), attrgetter("time_pad")
CAUSAL, NORM, SPATIAL = ("CausalConv3d",), ("GroupNorm",), ("SpatialNorm3D",)
RESNET, DOWN, UP = ("ResnetBlock3D",), ("Downsample3D",), ("Upsample3D",)
VAE = ("AutoencoderKLCogVideoX",)

MISTAKES: tuple[Mistake, ...] = (
    _wrong("causal: zeros in front", ("padding",), CAUSAL, _zeros_in_front, _looks_back),
    _wrong("causal: padded behind", ("causal_side",), CAUSAL, _padded_behind, _looks_back),
    _wrong("causal: padded on both sides", ("causal_side",), CAUSAL, _padded_on_both_sides,
           _looks_back),
    _wrong("causal: edge instead of zeros", ("padding",), CAUSAL, _edge_in_space, _looks_back),
    _wrong("causal: cache dropped", ("cache",), CAUSAL, _no_cache, _looks_back),
    _wrong("causal: cache in opposite order", ("cache",), CAUSAL, _cache_in_opposite_order,
           _looks_back),
    _wrong("causal: cache one frame early", ("cache",), CAUSAL, _cache_one_frame_early,
           _looks_back),
    _wrong("causal: cache of the first frame", ("cache",), CAUSAL, _stale_cache, _looks_back),
    _wrong("norm: PyTorch's default epsilon", ("epsilon",), NORM, _norm(eps=1e-5)),
    _wrong("norm: epsilon of 1e-3", ("epsilon",), NORM, _norm(eps=1e-3)),
    _wrong("norm: statistics of each frame", ("norm_axes",), NORM, _norm(axes=(2, 3, 5))),
    _wrong("norm: statistics of each position", ("norm_axes",), NORM, _norm(axes=(5,))),
    _wrong("norm: groups interleaved", ("norm_axes",), NORM,
           _norm(axes=(1, 2, 3, 4), interleaved=True), lambda module: module.num_groups > 1),
    _wrong("norm: variance over n - 1", ("norm_variance",), NORM, _norm(spare=1)),
    _wrong("norm: no scale and bias", ("scale_or_offset",), NORM,
           _norm(affine=False)),
    _wrong("norm: scale counted from one", ("scale_or_offset",), NORM, _norm_scaled_from_one),
    _wrong("spatial norm: first frame not apart", ("resize", "glue"), SPATIAL,
           _spatial(lambda f, zq: nearest_resize(zq, f.shape[1:4]))),
    _wrong("spatial norm: resized smoothly", ("resize",), SPATIAL,
           _spatial(_resized_smoothly)),
    _wrong("spatial norm: scale and shift exchanged", ("glue",), SPATIAL,
           _spatial(combine=lambda normed, scale, shift, f: normed * shift + scale)),
    _wrong("spatial norm: not normalised", ("glue",), SPATIAL,
           _spatial(combine=lambda normed, scale, shift, f: f * scale + shift)),
    _wrong("activation: GELU", ("activation",), ("SiLU",), _other_activation(jax.nn.gelu)),
    _wrong("activation: ReLU", ("activation",), ("SiLU",), _other_activation(jax.nn.relu)),
    _wrong("activation: none", ("activation",), ("SiLU",), _other_activation(lambda x: x)),
    _wrong("resnet: no shortcut", ("glue",), RESNET, _residual(lambda x, shortcut: x)),
    _wrong("resnet: shortcut subtracted", ("glue",), RESNET,
           _residual(lambda x, shortcut: x - shortcut)),
    _wrong("resnet: shortcut divided by sqrt(2)", ("scale_or_offset",), RESNET,
           _residual(lambda x, shortcut: (x + shortcut) / 2**0.5)),
    _wrong("down: pooled without the transpose", ("reshape_order",), DOWN,
           _pooled_without_transpose, _compresses),
    _wrong("down: every second frame", ("pooling",), DOWN, _pooled(lambda x: x[:, :, 0]),
           _compresses),
    _wrong("down: maximum of pairs", ("pooling",), DOWN, _pooled(lambda x: jnp.max(x, 2)),
           _compresses),
    _wrong("down: sum of pairs", ("pooling", "scale_or_offset"), DOWN,
           _pooled(lambda x: jnp.sum(x, 2)), _compresses),
    _wrong("down: last frame apart", ("pooling", "glue"), DOWN, _last_frame_apart, _compresses),
    _wrong("down: padded in front", ("padding",), DOWN, _padded_down(((1, 0), (1, 0)))),
    _wrong("down: padded on both sides", ("padding",), DOWN, _padded_down(((1, 1), (1, 1)))),
    _wrong("down: edge instead of zeros", ("padding",), DOWN, _padded_down(END, "edge")),
    _wrong("up: first frame not apart", ("resize", "glue"), UP, _upsampled_as_one, _compresses),
    _wrong("up: resized smoothly", ("resize",), UP, _upsampled(_smoothly)),
    _wrong("up: tiled", ("reshape_order", "resize"), UP,
           _upsampled(lambda x: jnp.tile(x, (1, 1, 2, 2, 1)))),
    _wrong("encode: halves of the moments exchanged", ("reshape_order",), VAE, _moments_exchanged,
           method="encode"),
    _wrong("encode: video from 0 to 1", ("scale_or_offset",), VAE, _given(lambda x: (x + 1) / 2),
           method="encode"),
    _wrong("encode: colours in opposite order", ("reshape_order",), VAE,
           _given(lambda x: x[..., ::-1]), method="encode"),
    _wrong("decode: latents scaled twice", ("scale_or_offset",), VAE, _scaled_twice,
           method="decode"),
    _wrong("decode: clipped to [0, 1]", ("clamp",), VAE, _clipped, method="decode"),
)  # fmt: skip
"""In the order of the model's parts."""
