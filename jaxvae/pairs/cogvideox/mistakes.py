"""Known mistakes in ports of this model, for `parity selftest`: what a mistaken module returns.

Each is a function `(module, right, *args)`, where `right` is the method as it was. Most were made
by an earlier port or are easily made: see the names.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxvae.layers.resize import nearest_resize
from jaxvae.pairs.mistakes import ACTIVATIONS, NORMS, ends, made, norm, shortcuts
from parity import Mistake

Wrong = Callable[..., Any]
Change = Callable[[Array], Any]


def _causal(
    lay: Callable[[Array, Array, Array], list[Array]] = lambda past, first, x: [past, x],
    kept: Callable[[Array, int], Array] = lambda frames, count: frames[:, -count:],
    convolve: Callable[[Any, Array], Any] = lambda conv, x: conv(x),
) -> Wrong:
    """A causal convolution that lays other frames before and behind its input, or keeps others.

    `past` are the frames in front, in a first chunk `first`: its first frame, repeated.
    """

    def wrong(module: Any, right: Wrong, inputs: Array, conv_cache: Any = None) -> Any:
        first = jnp.repeat(inputs[:, :1], module.time_pad, axis=1)
        past = first if conv_cache is None else conv_cache
        frames = jnp.concatenate(lay(past, first, inputs), axis=1)
        cache = kept(jnp.concatenate([past, inputs], axis=1), module.time_pad)
        return convolve(module.conv, frames), cache

    return wrong


def _zeros_in_front(past: Array, first: Array, x: Array) -> list[Array]:
    return [jnp.zeros_like(first) if past is first else past, x]


def _on_both_sides(past: Array, first: Array, x: Array) -> list[Array]:
    half = first.shape[1] // 2
    return [past[:, half:], x, jnp.repeat(x[:, -1:], half, axis=1)]


def _first_frame(frames: Array, count: int) -> Array:
    return jnp.repeat(frames[:, count : count + 1], count, axis=1)


def _edge_in_space(conv: Any, x: Array) -> Any:
    pads = [(n, n) for n in conv.padding]
    output = conv(jnp.pad(x, ((0, 0), *pads, (0, 0)), mode="edge"))
    return output[:, *(slice(n, -n or None) for n, _ in pads)]


def _apart(x: Array) -> bool:
    return x.shape[1] > 1 and x.shape[1] % 2 == 1


def _resized(f: Array, zq: Array) -> Any:
    return nearest_resize(zq, f.shape[1:4], first_apart=_apart(f))


def _resized_smoothly(f: Array, zq: Array) -> Any:
    def resize(x: Array, frames: int) -> Any:
        return jax.image.resize(x, (len(x), frames, *f.shape[2:4], x.shape[-1]), "linear")

    if _apart(f):
        parts = [resize(zq[:, :1], 1), resize(zq[:, 1:], f.shape[1] - 1)]
        return jnp.concatenate(parts, axis=1)
    return resize(zq, f.shape[1])


def _spatial(
    resize: Callable[[Array, Array], Any] = _resized,
    combine: Callable[..., Any] = lambda normed, scale, shift, f: normed * scale + shift,
) -> Wrong:
    """A spatial norm that resizes the latent otherwise, or combines otherwise what it has."""

    def wrong(module: Any, right: Wrong, f: Array, zq: Array, conv_cache: Any = None) -> Any:
        zq = resize(f, zq)
        scale, one = module.conv_y(zq)
        shift, other = module.conv_b(zq)
        output = combine(module.norm_layer(f), scale, shift, f)
        return output, {"conv_y": one, "conv_b": other}

    return wrong


def _residual(combine: Callable[[Array, Array], Array]) -> Wrong:
    def wrong(
        module: Any, right: Wrong, inputs: Array, temb: Any, zq: Any, conv_cache: Any = None
    ) -> Any:
        output, cache = right(inputs, temb, zq, conv_cache=conv_cache)
        shortcut = inputs if module.conv_shortcut is None else module.conv_shortcut(inputs)
        return combine(output - shortcut, shortcut), cache

    return wrong


def _pooled(x: Array, mean: Change = lambda pairs: jnp.mean(pairs, axis=2)) -> Array:
    """Frames pooled by another mean of pairs, (b, t, 2, h, w, c) to (b, t, h, w, c)."""
    odd = x.shape[1] % 2
    pairs = x[:, odd:].reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:])
    return jnp.concatenate([x[:, :odd], mean(pairs)], axis=1)


def _pooled_without_transpose(x: Array) -> Array:
    b, t, h, w, c = x.shape
    mixed = x.reshape(b * h * w, t, c)
    rest = mixed[:, t % 2 :].reshape(b * h * w, t // 2, 2, c).mean(2)
    return jnp.concatenate([mixed[:, : t % 2], rest], axis=1).reshape(b, -1, h, w, c)


def _last_frame_apart(x: Array) -> Any:
    end = x.shape[1] - x.shape[1] % 2
    return jnp.concatenate([_pooled(x[:, :end]), x[:, end:]], axis=1)


def _frame_by_frame(conv: Any, x: Array) -> Any:
    frames = conv(x.reshape(-1, *x.shape[2:]))
    return frames.reshape(*x.shape[:2], *frames.shape[1:])


def _down(
    pool: Change = _pooled, before: int = 0, behind: int = 1, mode: str = "constant"
) -> Wrong:
    """A downsampler that pools frames otherwise, or pads height and width otherwise."""

    def wrong(module: Any, right: Wrong, x: Array) -> Any:
        pads = ((0, 0), (0, 0), (before, behind), (before, behind), (0, 0))
        return _frame_by_frame(module.conv, jnp.pad(pool(x), pads, mode=mode))

    return wrong


def _up(enlarge: Callable[[Array, tuple[int, int, int]], Any]) -> Wrong:
    """An upsampler that brings (b, t, h, w, c) to another t, h and w otherwise."""

    def wrong(module: Any, right: Wrong, x: Array) -> Any:
        frames = 2 * x.shape[1] - x.shape[1] % 2
        return _frame_by_frame(module.conv, enlarge(x, (frames, 2 * x.shape[2], 2 * x.shape[3])))

    return wrong


def _longer(x: Array, size: tuple[int, int, int]) -> Any:
    return nearest_resize(x, (size[0], *x.shape[2:4]), first_apart=_apart(x))


def _enlarged_smoothly(x: Array, size: tuple[int, int, int]) -> Any:
    return jax.image.resize(_longer(x, size), (len(x), *size, x.shape[-1]), "linear")


_PARTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "causal": ("CausalConv3d", attrgetter("time_pad")),
    "norm": ("GroupNorm", lambda norm: True),
    "spatial norm": ("SpatialNorm3D", lambda norm: True),
    "down": ("Downsample3D", attrgetter("compress_time")),
    "up": ("Upsample3D", attrgetter("compress_time")),
}
"""By the first word of a mistake, the class that it is made in, and in which modules of it."""

_KNOWN: dict[str, tuple[str, Wrong]] = {
    "causal: zeros in front": ("padding", _causal(_zeros_in_front)),
    "causal: padded behind": ("causal_side", _causal(lambda past, first, x: [x, past])),
    "causal: padded on both sides": ("causal_side", _causal(_on_both_sides)),
    "causal: edge instead of zeros": ("padding", _causal(convolve=_edge_in_space)),
    "causal: cache dropped": ("cache", _causal(lambda past, first, x: [first, x])),
    "causal: cache in opposite order": ("cache", _causal(lambda past, _, x: [past[:, ::-1], x])),
    "causal: cache one frame early": ("cache", _causal(kept=lambda x, n: x[:, -n - 1 : -1])),
    "causal: cache of the first frame": ("cache", _causal(kept=_first_frame)),
    "norm: statistics of each frame": (
        "norm_axes",
        norm(lambda rank: (*range(2, rank - 2), rank - 1)),
    ),
    "spatial norm: first frame not apart": (
        "resize glue",
        _spatial(lambda f, zq: nearest_resize(zq, f.shape[1:4])),
    ),
    "spatial norm: resized smoothly": ("resize", _spatial(_resized_smoothly)),
    "spatial norm: scale and shift exchanged": (
        "glue",
        _spatial(combine=lambda normed, scale, shift, f: normed * shift + scale),
    ),
    "spatial norm: not normalised": (
        "glue",
        _spatial(combine=lambda normed, scale, shift, f: f * scale + shift),
    ),
    "down: pooled without the transpose": ("reshape_order", _down(_pooled_without_transpose)),
    "down: every second frame": ("pooling", _down(partial(_pooled, mean=lambda x: x[:, :, 0]))),
    "down: maximum of pairs": ("pooling", _down(partial(_pooled, mean=partial(jnp.max, axis=2)))),
    "down: sum of pairs": (
        "pooling scale_or_offset",
        _down(partial(_pooled, mean=partial(jnp.sum, axis=2))),
    ),
    "down: last frame apart": ("pooling glue", _down(_last_frame_apart)),
    "down: padded in front": ("padding", _down(before=1, behind=0)),
    "down: padded on both sides": ("padding", _down(before=1)),
    "down: edge instead of zeros": ("padding", _down(mode="edge")),
    "up: first frame not apart": ("resize glue", _up(nearest_resize)),
    "up: resized smoothly": ("resize", _up(_enlarged_smoothly)),
    "up: tiled": (
        "reshape_order resize",
        _up(lambda x, size: jnp.tile(_longer(x, size), (1, 1, 2, 2, 1))),
    ),
}


def _mistakes(name: str, causes: str, wrong: Wrong) -> tuple[Mistake, ...]:
    kind, where = _PARTS[name.partition(":")[0]]
    return made((kind,), (name, causes, wrong), where=where)


MISTAKES = (
    *(mistake for name, known in _KNOWN.items() for mistake in _mistakes(name, *known)),
    *NORMS,
    *ACTIVATIONS,
    *shortcuts(("ResnetBlock3D",), _residual),
    *ends("AutoencoderKLCogVideoX"),
)
"""Those of this model's own parts first."""
