import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.downsampling import CogVideoXDownsample3D
from diffusers.models.upsampling import CogVideoXUpsample3D

from jaxvae.layers import resize
from jaxvae.models.cogvideox import resampling

CLOSE = 5e-6


def test_nearest_index_for_many_sizes(bridge):
    pairs = [(old, new) for old in range(1, 100) for new in range(1, 100)]
    pairs += [(41, 41 * 47), (49, 49 * 7), (3, 300), (90, 720), (61, 1000), (60, 3660)]
    rounded = []
    for old, new in pairs:
        x = torch.arange(old, dtype=torch.float32).reshape(1, 1, 1, 1, old)
        expected = torch.nn.functional.interpolate(x, size=(1, 1, new)).reshape(-1).numpy()
        index = resize.nearest_index(old, new)
        assert np.array_equal(index, expected), (old, new)
        if not np.array_equal(index, np.arange(new) * old // new):
            rounded.append((old, new))
    assert rounded  # pairs where float32 rounding shows
    assert (60, 3660) in rounded


def test_nearest_resize_in_all_axes(bridge):
    x = bridge.normal(2, 3, 4, 5, 2)
    for size in ((6, 12, 10), (4, 12, 7), (1, 2, 3)):
        expected = torch.nn.functional.interpolate(bridge.first(x), size=size)
        assert np.array_equal(resize.nearest_resize(jnp.asarray(x), size), bridge.last(expected))


def identity_conv(module):
    """Make a sampler's convolution copy the middle pixel, so that data movement shows alone."""
    weight = torch.zeros_like(module.conv.weight)
    for channel in range(weight.shape[0]):
        weight[channel, channel, 1, 1] = 1
    module.conv.weight.copy_(weight)
    module.conv.bias.zero_()
    return module


@pytest.mark.parametrize("compress_time", [False, True])
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (resampling.Downsample3D, CogVideoXDownsample3D),
        (resampling.Upsample3D, CogVideoXUpsample3D),
    ],
)
def test_samplers(bridge, ours, theirs, frames, compress_time):
    a, b = bridge.load(
        lambda: ours(3, 3, compress_time=compress_time, **bridge.build()),
        theirs(3, 3, compress_time=compress_time),
    )
    run = jax.jit(lambda module, x: module(x))
    x = bridge.normal(2, frames, 5, 6, 3)
    assert bridge.error(run(a, x), bridge.last(b(bridge.first(x)))) < CLOSE

    # Every value of this input is its own address, times two so that averages stay exact.
    bridge_weights = bridge.state(identity_conv(b))
    a.conv.kernel[...] = jnp.asarray(bridge_weights["conv.weight"].transpose(2, 3, 1, 0))
    a.conv.bias[...] = jnp.zeros(3)
    x = 2 * np.arange(2 * frames * 5 * 6 * 3, dtype=np.float32).reshape(2, frames, 5, 6, 3)
    assert np.array_equal(run(a, x), bridge.last(b(bridge.first(x))))
