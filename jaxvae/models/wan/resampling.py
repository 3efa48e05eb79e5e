"""Down- and upsampling of height, width and time, shortcuts around them, and patches.

Source: diffusers 0.42.1, `autoencoder_kl_wan.py`.
"""

from functools import partial
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxvae.layers.containers import Identity, Sequential, ZeroPad2d
from jaxvae.layers.convolution import Build, Cache, Conv2d
from jaxvae.layers.resize import nearest_resize
from jaxvae.layers.rounding import narrow, widen
from jaxvae.layers.scopes import Module
from jaxvae.models.config import ConfigError
from jaxvae.models.wan.causal_convolution import CausalConv3d, after_past, last_frames
from jaxvae.run.steps import Video

Mode = Literal["none", "upsample2d", "upsample3d", "downsample2d", "downsample3d"]


class AvgDown3D(Module):
    """Means of groups of channels, where the pixels and frames of a block are channels.

    Source: diffusers 0.42.1, `AvgDown3D`. A number of frames that `factor_t` does not divide gets
    frames of zeros in front, which count in the mean.
    """

    def __init__(self, in_channels: int, out_channels: int, factor_t: int, factor_s: int = 1):
        factor = factor_t * factor_s**2
        if in_channels * factor % out_channels:
            raise ConfigError(
                f"AvgDown3D: {in_channels} channels times {factor} are not divisible by the"
                f" {out_channels} channels that come out"
            )
        self.out_channels = out_channels
        self.factor_t = factor_t
        self.factor_s = factor_s

    def __call__(self, x: Video) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the smaller video."""
        output: Array = _average(x, self.out_channels, self.factor_t, self.factor_s)
        return output


@partial(jax.jit, static_argnums=(1, 2, 3))
def _average(x: Video, channels: int, time: int, space: int) -> Video:
    x = jnp.pad(x, ((0, 0), (-x.shape[1] % time, 0), (0, 0), (0, 0), (0, 0)))
    batch, frames, height, width, _ = x.shape
    if height % space or width % space:
        raise ValueError(
            f"AvgDown3D: expected height and width that {space} divides, found {height}x{width};"
            " give frames, and tiles, whose sides all levels can halve"
        )
    t, h, w = frames // time, height // space, width // space
    x = x.reshape(batch, t, time, h, space, w, space, -1)
    groups = x.transpose(0, 1, 3, 5, 7, 2, 4, 6).reshape(batch, t, h, w, channels, -1)
    return narrow(jnp.mean(widen(groups), axis=-1), x.dtype)


class DupUp3D(Module):
    """Channels repeated, then spread over the pixels and frames of a block.

    Source: diffusers 0.42.1, `DupUp3D`. A first chunk loses the frames before its first one.
    """

    def __init__(self, in_channels: int, out_channels: int, factor_t: int, factor_s: int = 1):
        factor = factor_t * factor_s**2
        if out_channels * factor % in_channels:
            raise ConfigError(
                f"DupUp3D: {out_channels} channels times {factor} are not divisible by the"
                f" {in_channels} channels that go in"
            )
        self.factor_t = factor_t
        self.factor_s = factor_s
        self.repeats = out_channels * factor // in_channels

    def __call__(self, x: Video, first_chunk: bool = False) -> Float[Array, "b t2 h2 w2 c2"]:
        """Return the larger video."""
        output: Array = _spread(x, self.repeats, self.factor_t, self.factor_s)
        return output[:, self.factor_t - 1 :] if first_chunk else output


@partial(jax.jit, static_argnums=(1, 2, 3))
def _spread(x: Video, repeats: int, time: int, space: int) -> Video:
    batch, frames, height, width, _ = x.shape
    x = jnp.repeat(x, repeats, axis=-1).reshape(*x.shape[:4], -1, time, space, space)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, frames * time, height * space, width * space, -1)


class Upsample(Module):
    """Every pixel twice in height and width.

    Source: diffusers 0.42.1, `WanUpsample`. Quirk of the source, kept: it goes through float32,
    which rounds float64.
    """

    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
        """Return the larger frames."""
        _, height, width, _ = x.shape
        single = x.astype(jnp.float32).astype(x.dtype)
        larger: Array = nearest_resize(single[:, None], (1, 2 * height, 2 * width))[:, 0]
        return larger


class Resample(Module):
    """Half or double height and width, and in the modes `3d` the frames too.

    Source: diffusers 0.42.1, `WanResample`. A first chunk (`feat_cache` None) keeps its number of
    frames. In the next one `upsample3d` finds "Rep" in the source's cache, and pads with zeros:
    that state is a cache of zeros here. `time_conv` doubles the channels and these become frames.
    Upsampling halves the channels unless `upsample_out_dim` says otherwise.
    """

    def __init__(
        self, dim: int, mode: Mode, upsample_out_dim: int | None = None, **build: Unpack[Build]
    ):
        self.mode = mode
        self.resample: Sequential | Identity = Identity()
        if mode.startswith("upsample"):
            out = upsample_out_dim or dim // 2
            self.resample = Sequential(Upsample(), Conv2d(dim, out, 3, padding=1, **build))
        elif mode.startswith("downsample"):
            halved = Conv2d(dim, dim, 3, stride=2, **build)
            self.resample = Sequential(ZeroPad2d((0, 1, 0, 1)), halved)
        if mode == "upsample3d":
            self.time_conv = CausalConv3d(dim, 2 * dim, (3, 1, 1), padding=(1, 0, 0), **build)
        elif mode == "downsample3d":
            self.time_conv = CausalConv3d(dim, dim, (3, 1, 1), stride=(2, 1, 1), **build)

    def __call__(
        self, x: Video, feat_cache: Cache | None = None
    ) -> tuple[Float[Array, "b t2 h2 w2 c2"], Cache]:
        """Return the output and the cache of `time_conv`, if there is one."""
        past = feat_cache.get("time_conv") if feat_cache else None
        new_cache: Cache = {}
        if self.mode == "upsample3d":
            given = jnp.zeros_like(x) if past is None else x
            new_cache["time_conv"] = last_frames(given, past)
            x = x if past is None else _interleaved(self.time_conv(x, past))
        batch, frames, *image = x.shape
        x = self.resample(x.reshape(batch * frames, *image))
        x = x.reshape(batch, frames, *x.shape[1:])
        if self.mode == "downsample3d":
            new_cache["time_conv"] = last_frames(x, past, 1)
            # one frame before, and `time_conv` pads nothing
            x = x if past is None else self.time_conv(after_past(x, past, 1))
        return x, new_cache


@jax.jit
def _interleaved(x: Float[Array, "b t h w two_c"]) -> Video:
    """Make frames 2 i and 2 i + 1 of the halves of the channels of frame i."""
    batch, frames, height, width, channels = x.shape
    pairs = x.reshape(batch, frames, height, width, 2, channels // 2).transpose(0, 1, 4, 2, 3, 5)
    return pairs.reshape(batch, 2 * frames, height, width, channels // 2)


@partial(jax.jit, static_argnums=1)
def patchify(x: Video, patch_size: int) -> Video:
    """Return a video whose channels are all pixels of a patch.

    Source: diffusers 0.42.1, `patchify`. Raises ValueError for sides that are no multiples.
    """
    batch, frames, height, width, channels = x.shape
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"encode: expected height and width that patch_size ({patch_size}) divides, found"
            f" {height}x{width}"
        )
    x = x.reshape(batch, frames, height // patch_size, patch_size, -1, patch_size, channels)
    x = x.transpose(0, 1, 2, 4, 6, 5, 3)
    return x.reshape(*x.shape[:4], -1)


@partial(jax.jit, static_argnums=1)
def unpatchify(x: Video, patch_size: int) -> Video:
    """Undo `patchify`."""
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames, height, width, -1, patch_size, patch_size)
    x = x.transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, frames, height * patch_size, width * patch_size, -1)
