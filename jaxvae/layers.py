"""Leaf layers, channels-last: convolutions, norms, activations, nearest resize.

Source: diffusers 0.42.1, `autoencoder_kl_cogvideox.py`, and the torch layers it uses. Attribute and
argument names are those of PyTorch, so that module paths are equal on both sides. Parameters are
`kernel` (kt, kh, kw, in, out) or (in, out), `scale` and `bias`.
"""

import math
from typing import Any, Literal, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

Cache = dict[str, Any]
"""Frames handed from one chunk to the next: nested dicts with diffusers' keys."""

Precision = Literal["default", "high", "highest"] | lax.Precision
Triple = tuple[int, int, int]


class Build(TypedDict):
    """What every constructor needs besides PyTorch's own arguments."""

    rngs: nnx.Rngs
    dtype: DTypeLike
    precision: Precision


def as_precision(precision: Precision) -> lax.Precision:
    """Return the enum member for a name such as `"highest"`."""
    if isinstance(precision, lax.Precision):
        return precision
    try:
        return lax.Precision[precision.upper()]
    except KeyError:
        raise ValueError(
            f"precision: expected 'default', 'high' or 'highest', found {precision!r}"
        ) from None


def _triple(value: int | Triple) -> Triple:
    return (value, value, value) if isinstance(value, int) else value


def _uniform_param(
    shape: tuple[int, ...], fan_in: int, rngs: nnx.Rngs, dtype: DTypeLike
) -> nnx.Param[Array]:
    # torch's default for convolutions and linear layers (kaiming_uniform with a = sqrt(5)) comes
    # to U(-1/sqrt(fan_in), 1/sqrt(fan_in)), for the weight and for the bias.
    bound = 1 / math.sqrt(fan_in)
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


SMALL_FRAME = 64
"""Pixels up to which the native 3-D convolution is used on CPU too: at (1, 10, 8, 8, 512) it takes
98 ms where the sum takes 83, and is 2.5e-7 (rms) from float64 where the sum is 6.7e-7."""


def convolve(
    x: Float[Array, "b t h w din"],
    kernel: Float[Array, "kt kh kw din dout"],
    *,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> Float[Array, "b t2 h2 w2 dout"]:
    """Convolve in (t, h, w) with zero padding, by the formulation that suits the backend.

    On CPU a kernel of `kt` frames is a sum of `kt` 2-D convolutions with time folded into the
    batch: XLA's 3-D convolution took 431 ms where the sum took 305 ms (2 cores, float32,
    (1, 10, 64, 64, 128) to 128 channels, kernel 3x3x3), and 359 against 275 ms at
    (1, 10, 32, 32, 256). Small frames and other backends take the native 3-D convolution.
    """
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(
            x.shape[1:4], kernel.shape[:3], stride, padding, dilation, strict=True
        )
    ]
    if min(sizes) < 1:
        raise ValueError(
            f"convolution: an input of (t, h, w) = {x.shape[1:4]} with padding {padding} is smaller"
            f" than the kernel {kernel.shape[:3]} with dilation {dilation}; give a larger input"
        )
    small = x.shape[2] * x.shape[3] <= SMALL_FRAME
    if kernel.shape[0] > 1 and (small or jax.default_backend() != "cpu"):
        return lax.conv_general_dilated(
            x,
            kernel,
            stride,
            [(p, p) for p in padding],
            rhs_dilation=dilation,
            dimension_numbers=("NDHWC", "DHWIO", "NDHWC"),
            precision=precision,
        )
    if padding[0]:
        x = jnp.pad(x, ((0, 0), (padding[0], padding[0]), (0, 0), (0, 0), (0, 0)))
    batch, _, height, width, channels = x.shape
    total = None
    for tap in range(kernel.shape[0]):
        start = tap * dilation[0]
        frames = x[:, start : start + (sizes[0] - 1) * stride[0] + 1 : stride[0]]
        part = lax.conv_general_dilated(
            frames.reshape(batch * sizes[0], height, width, channels),
            kernel[tap],
            stride[1:],
            [(p, p) for p in padding[1:]],
            rhs_dilation=dilation[1:],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=precision,
        )
        total = part if total is None else total + part
    assert total is not None
    return total.reshape(batch, *sizes, kernel.shape[-1])


def nearest_index(old: int, new: int) -> np.ndarray:
    """Return which of `old` positions each of `new` positions reads, as PyTorch rounds it.

    That is floor(i * old / new), with old / new rounded to float32 first unless new is 2 * old. So
    even at an integer factor an index may be one lower than i // factor: 60 -> 3660 has some.
    """
    if new == 2 * old:
        return np.repeat(np.arange(old), 2)
    ratio = np.float32(old) / np.float32(new)
    index: np.ndarray = np.floor(np.arange(new, dtype=np.float32) * ratio).astype(np.int64)
    clipped: np.ndarray = np.minimum(index, old - 1)
    return clipped


def nearest_resize(
    x: Float[Array, "b t h w c"], size: tuple[int, int, int]
) -> Float[Array, "b t2 h2 w2 c"]:
    """Resize (t, h, w) to `size` as `torch.nn.functional.interpolate(x, size=size)` does.

    Output i reads input floor(i * in / out): 3 -> 7 reads 0 0 0 1 1 2 2. `jax.image.resize` uses
    pixel centres and reads 0 0 1 1 1 2 2; the two agree for integer upscaling only.
    """
    if 0 in x.shape:
        raise ValueError(f"nearest resize: an input of shape {x.shape} has nothing to repeat")
    for axis, new in enumerate(size, start=1):
        old = x.shape[axis]
        index = nearest_index(old, new)
        if new % old == 0 and np.array_equal(index, np.arange(new) // (new // old)):
            x = jnp.repeat(x, new // old, axis=axis)
        else:
            x = jnp.take(x, index, axis=axis, mode="clip")
    return x


class Conv3d(nnx.Module):
    """3-D convolution with symmetric zero padding.

    Source: diffusers 0.42.1, `CogVideoXSafeConv3d`. That class cuts inputs above 2 GiB into parts
    along time, with bit-identical results, for cuDNN's sake; XLA needs no cutting.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        padding: int | Triple = 0,
        dilation: int | Triple = 1,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
    ):
        """Take PyTorch's arguments; `precision` is that of the products."""
        size = _triple(kernel_size)
        fan_in = in_channels * math.prod(size)
        self.kernel = _uniform_param((*size, in_channels, out_channels), fan_in, rngs, dtype)
        self.bias = _uniform_param((out_channels,), fan_in, rngs, dtype)
        self.stride = _triple(stride)
        self.padding = _triple(padding)
        self.dilation = _triple(dilation)
        self.precision = as_precision(precision)

    def __call__(self, input: Float[Array, "b t h w din"]) -> Float[Array, "b t2 h2 w2 dout"]:
        """Convolve and add the bias."""
        output = convolve(
            input,
            self.kernel[...],
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            precision=self.precision,
        )
        return output + self.bias[...].reshape(1, 1, 1, 1, -1)


class Conv2d(nnx.Module):
    """2-D convolution of single frames.

    Source: torch 2.13, `nn.Conv2d`, as the resampling blocks use it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
    ):
        """Take PyTorch's arguments; `precision` is that of the products."""
        fan_in = in_channels * kernel_size**2
        shape = (kernel_size, kernel_size, in_channels, out_channels)
        self.kernel = _uniform_param(shape, fan_in, rngs, dtype)
        self.bias = _uniform_param((out_channels,), fan_in, rngs, dtype)
        self.stride = stride
        self.padding = padding
        self.precision = as_precision(precision)

    def __call__(self, input: Float[Array, "n h w din"]) -> Float[Array, "n h2 w2 dout"]:
        """Convolve and add the bias."""
        output = convolve(
            input[:, None],
            self.kernel[...][None],
            stride=(1, self.stride, self.stride),
            padding=(0, self.padding, self.padding),
            precision=self.precision,
        )
        return output[:, 0] + self.bias[...].reshape(1, 1, 1, -1)


class Linear(nnx.Module):
    """Dense layer over the last axis.

    Source: torch 2.13, `nn.Linear`, as `temb_proj` uses it.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        precision: Precision = "highest",
    ):
        """Take PyTorch's arguments; `precision` is that of the products."""
        self.kernel = _uniform_param((in_features, out_features), in_features, rngs, dtype)
        self.bias = _uniform_param((out_features,), in_features, rngs, dtype)
        self.precision = as_precision(precision)

    def __call__(self, input: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        """Multiply by the kernel and add the bias."""
        product = jnp.matmul(input, self.kernel[...], precision=self.precision)
        return product + self.bias[...].reshape(1, -1)


class CausalConv3d(nnx.Module):
    """3-D convolution that sees no future frame.

    Source: diffusers 0.42.1, `CogVideoXCausalConv3d`. A first chunk repeats its first frame
    `kernel_size - 1` times in front; a later chunk starts from the `past` frames that the one
    before handed on. `pad_mode="replicate"` repeats the edge in time and space and has no cache.

    Quirks of the source, kept:
    - Height and width are swapped in the zero padding: a (3, 5, 3) kernel, which needs (2, 1),
      is padded by (1, 2) and turns 8x8 into 6x10.
    - Dilation does not enlarge the padding in time: 8 frames at dilation 2 give 6.
    A kernel of one frame needs no cache and returns None (the source returns its whole input,
    which nothing reads).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        dilation: int = 1,
        pad_mode: str = "constant",
        **build: Any,
    ):
        """Take PyTorch's arguments; an integer stride or dilation means time only."""
        kernel_size = _triple(kernel_size)
        self.pad_mode = pad_mode
        self.time_pad = kernel_size[0] - 1
        self.height_pad = (kernel_size[1] - 1) // 2
        self.width_pad = (kernel_size[2] - 1) // 2
        self.conv = Conv3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=(stride, 1, 1) if isinstance(stride, int) else stride,
            padding=0 if pad_mode == "replicate" else (0, self.width_pad, self.height_pad),
            dilation=(dilation, 1, 1),
            **build,
        )

    def __call__(
        self,
        inputs: Float[Array, "b t h w din"],
        conv_cache: Float[Array, "b past h w din"] | None = None,
    ) -> tuple[Float[Array, "b t2 h2 w2 dout"], Float[Array, "b past h w din"] | None]:
        """Return the output and the last frames, for the next chunk."""
        if self.pad_mode == "replicate":
            pads = (
                (0, 0),
                (self.time_pad, 0),
                (self.height_pad, self.height_pad),
                (self.width_pad, self.width_pad),
                (0, 0),
            )
            return self.conv(jnp.pad(inputs, pads, mode="edge")), None
        if self.time_pad == 0:
            return self.conv(inputs), None
        past = [inputs[:, :1]] * self.time_pad if conv_cache is None else [conv_cache]
        inputs = jnp.concatenate([*past, inputs], axis=1)
        return self.conv(inputs), inputs[:, -self.time_pad :]


class GroupNorm(nnx.Module):
    """Group normalisation over every axis but the batch, accurate for a large mean.

    Source: torch 2.13, `nn.GroupNorm`. The statistics are those of one call: a chunk of frames is
    normalised by itself.

    Numerics: statistics in float32 (float64 for float64). The mean is subtracted, then the mean of
    what is left, then the variance is taken; each mean goes over the positions of one channel
    first and over the channels of a group second. rms distance from float64 at (1, 9, 64, 64, 128):
    6e-8 at mean / std = 0, 30 and 100, where PyTorch has 6e-8, 1.4e-6 and 4.7e-6.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        *,
        dtype: DTypeLike = jnp.float32,
    ):
        """Take PyTorch's arguments. Scale starts at one, bias at zero."""
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_channels} channels are not divisible by {num_groups} groups"
            )
        self.scale = nnx.Param(jnp.ones((num_channels,), dtype))
        self.bias = nnx.Param(jnp.zeros((num_channels,), dtype))
        self.num_groups = num_groups
        self.eps = eps

    def __call__(self, input: Float[Array, "b *positions c"]) -> Float[Array, "b *positions c"]:
        """Normalise and apply scale and bias."""
        x = input.astype(jnp.promote_types(input.dtype, jnp.float32))
        x = x - self._group_mean(x)
        x = x - self._group_mean(x)
        variance = self._group_mean(jnp.square(x))
        per_channel = (1,) * (x.ndim - 1) + (-1,)
        scale = self.scale[...].astype(x.dtype).reshape(per_channel)
        bias = self.bias[...].astype(x.dtype).reshape(per_channel)
        return (x * (lax.rsqrt(variance + self.eps) * scale) + bias).astype(input.dtype)

    def _group_mean(self, x: Array) -> Array:
        # (b, 1, ..., 1, c): each group's mean, repeated for its channels.
        channels = jnp.mean(x, axis=tuple(range(1, x.ndim - 1)))
        groups = jnp.mean(channels.reshape(x.shape[0], self.num_groups, -1), axis=-1)
        repeated = jnp.repeat(groups, x.shape[-1] // self.num_groups, axis=-1)
        return repeated.reshape(x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])


class SpatialNorm3D(nnx.Module):
    """Group normalisation whose scale and bias are predicted from the latent `zq`.

    Source: diffusers 0.42.1, `CogVideoXSpatialNorm3D`. `zq` is resized to the size of `f`. With an
    odd number of frames above one, the first frame of each is kept apart: 3 latent frames and 9
    frames of `f` pair as 1 with 1 and 2 with 8. The eps is always 1e-6.
    """

    def __init__(self, f_channels: int, zq_channels: int, groups: int = 32, **build: Any):
        """Take PyTorch's arguments."""
        self.norm_layer = GroupNorm(groups, f_channels, eps=1e-6, dtype=build["dtype"])
        self.conv_y = CausalConv3d(zq_channels, f_channels, kernel_size=1, stride=1, **build)
        self.conv_b = CausalConv3d(zq_channels, f_channels, kernel_size=1, stride=1, **build)

    def __call__(
        self,
        f: Float[Array, "b t h w c"],
        zq: Float[Array, "b tz hz wz cz"],
        conv_cache: Cache | None = None,
    ) -> tuple[Float[Array, "b t h w c"], Cache]:
        """Return the output and a cache of the source's keys, without arrays."""
        conv_cache = conv_cache or {}
        new_cache: Cache = {}
        frames, height, width = f.shape[1:4]
        if frames > 1 and frames % 2 == 1:
            first = nearest_resize(zq[:, :1], (1, height, width))
            rest = nearest_resize(zq[:, 1:], (frames - 1, height, width))
            zq = jnp.concatenate([first, rest], axis=1)
        else:
            zq = nearest_resize(zq, (frames, height, width))
        scale, new_cache["conv_y"] = self.conv_y(zq, conv_cache=conv_cache.get("conv_y"))
        shift, new_cache["conv_b"] = self.conv_b(zq, conv_cache=conv_cache.get("conv_b"))
        return self.norm_layer(f) * scale + shift, new_cache


class SiLU(nnx.Module):
    """x * sigmoid(x). Source: torch 2.13, `nn.SiLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return input * jax.nn.sigmoid(input)


class Mish(nnx.Module):
    """x * tanh(softplus(x)). Source: torch 2.13, `nn.Mish`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return input * jnp.tanh(jax.nn.softplus(input))


class GELU(nnx.Module):
    """x * Phi(x) with the exact erf, not the tanh formula. Source: torch 2.13, `nn.GELU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return jax.nn.gelu(input, approximate=False)


class ReLU(nnx.Module):
    """max(x, 0). Source: torch 2.13, `nn.ReLU`."""

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply elementwise."""
        return jnp.maximum(input, 0)


class Dropout(nnx.Module):
    """Zero elements with probability `p` and divide the rest by 1 - p.

    Source: torch 2.13, `nn.Dropout`. Does nothing after `.eval()`. The random stream is forked from
    the constructor's `rngs`, and only where `p` is above zero.
    """

    def __init__(self, p: float = 0.5, *, rngs: nnx.Rngs):
        """Take PyTorch's probability."""
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: expected a probability in [0, 1), found {p}")
        self.p = p
        self.deterministic = False
        self.rngs = nnx.data(rngs.dropout.fork() if p > 0 else None)

    def __call__(self, input: Float[Array, "..."]) -> Float[Array, "..."]:
        """Drop elements, or return the input as it is."""
        if self.rngs is None or self.deterministic:
            return input
        keep = jax.random.bernoulli(self.rngs(), 1 - self.p, input.shape)
        return jnp.where(keep, input / (1 - self.p), jnp.zeros_like(input))


_ACTIVATIONS: dict[str, type[nnx.Module]] = {
    "silu": SiLU,
    "swish": SiLU,
    "mish": Mish,
    "gelu": GELU,
    "relu": ReLU,
}


def get_activation(act_fn: str) -> Any:
    """Return a new activation module for one of diffusers' names, in any case."""
    try:
        return _ACTIVATIONS[act_fn.lower()]()
    except KeyError:
        names = ", ".join(_ACTIVATIONS)
        raise ValueError(f"act_fn: expected one of {names}, found {act_fn!r}") from None
