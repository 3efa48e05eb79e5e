"""Ports with one known mistake, as pairs that `parity run` can be pointed at."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx

from jaxvae.layers.convolution import Conv2d
from jaxvae.pairs.cogvideox import pair
from parity.capture.nnx import submodules


def mistaken_pool_and_pad(x, compress_time):
    """Averages pairs after `reshape(B*H*W, T, C)` of a (B, T, H, W, C) array: no transpose."""
    if compress_time and x.shape[1] > 1:
        b, t, h, w, c = x.shape
        mixed = x.reshape(b * h * w, t, c)
        first = mixed[:, : t % 2]
        pooled = mixed[:, t % 2 :].reshape(b * h * w, t // 2, 2, c).mean(2)
        x = jnp.concatenate([first, pooled], axis=1).reshape(b, -1, h, w, c)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))


def convolve_frames(conv, x):
    """A 2-D convolution of every frame."""
    b, t, *image = x.shape
    y = conv(x.reshape(b * t, *image))
    return y.reshape(b, t, *y.shape[1:])


class MistakenDownsample(nnx.Module):
    """The downsampler with that pooling."""

    def __init__(self, right):
        self.conv: Conv2d = right.conv
        self.compress_time = right.compress_time

    def __call__(self, x):
        return convolve_frames(self.conv, mistaken_pool_and_pad(x, self.compress_time))


def mistake_pooling(port):
    """The port with the time pooling of an earlier one."""
    for block in port.encoder.down_blocks:
        if block.downsamplers is not None:
            block.downsamplers[0] = MistakenDownsample(block.downsamplers[0])
    return port


def mistaken_pooling(options, torch_module):
    return mistake_pooling(pair.PAIR.make_nnx(options, torch_module))


def clip_only(torch_module, options, seed):
    """The clip through encode, for the mistake is there."""
    return pair.PAIR.cases(torch_module, options, seed)[:1]


POOLING = replace(pair.PAIR, name="pooling", make_nnx=mistaken_pooling, cases=clip_only)


def scale_output(port, path, factor):
    """Multiply the output of one module by `factor`; what it hands to the next chunk stays."""
    module = submodules(port)[path]

    class Scaled(type(module)):
        def __call__(self, *args, **kwargs):
            output = super().__call__(*args, **kwargs)
            if isinstance(output, tuple):
                return output[0] * factor, *output[1:]
            return output * factor

    original = type(module)
    object.__setattr__(module, "__class__", Scaled)
    return lambda: object.__setattr__(module, "__class__", original)
