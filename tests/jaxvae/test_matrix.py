"""The model against diffusers, over frames, sizes, batches and tiles."""

import chex
import diffusers
import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxvae import autoencoder
from jaxvae.chunks import chunk_bounds
from jaxvae.steps import Coder, decode_chunk, encode_chunk

LIMIT = 2e-5  # relative to the largest value

# Each first chunk of encode is a program of its own, and compiling it takes seconds.
FRAMES = [
    pytest.param(n, marks=[pytest.mark.slow] * (n in (3, 4, 6, 7, *range(10, 16))))
    for n in (*range(1, 18), 24, 25, 33, 49)
]
LATENTS = [*range(1, 10), 13, 21, 22]


def compare_chunks(bridge, ours, theirs, direction, x, monkeypatch):
    """Every chunk that diffusers makes: its output, and the caches that it hands on."""
    network = getattr(theirs, f"{direction}r")
    step = {"encode": encode_chunk, "decode": decode_chunk}[direction]
    coder = Coder(step, (getattr(ours, f"{direction}r"), None))
    chunks = []

    def forward(sample, conv_cache=None, original=network.forward):
        output, after = original(sample, conv_cache=conv_cache)
        chunks.append((bridge.last(sample), bridge.last(output), after))
        return output, after

    monkeypatch.setattr(network, "forward", forward)
    whole = getattr(theirs, direction)(bridge.first(x), return_dict=False)[0]
    whole = bridge.last(getattr(whole, "parameters", whole))

    cache, outputs, start = None, [], 0
    size = {"encode": 8, "decode": 2}[direction]
    assert len(chunks) == len(chunk_bounds(x.shape[1], size))
    for (their_sample, reference, their_cache), (start, end) in zip(
        chunks, chunk_bounds(x.shape[1], size), strict=True
    ):
        assert np.array_equal(x[:, start:end], their_sample)
        output, cache = coder(x[:, start:end], cache)
        assert bridge.error(output, reference) < LIMIT
        assert bridge.caches_agree(cache, their_cache, LIMIT) == (12 if size == 8 else 18)
        outputs.append(np.asarray(output))
    joined = getattr(ours, direction)(x)
    joined = getattr(joined, "parameters", joined)
    assert np.array_equal(joined, np.concatenate(outputs, axis=1))
    assert bridge.error(joined, whole) < LIMIT
    return joined


@pytest.mark.parametrize("frames", FRAMES)
def test_encode(bridge, pair, monkeypatch, frames):
    x = bridge.normal(1, frames, 16, 16, 3, seed=frames)
    moments = compare_chunks(bridge, pair.ours, pair.theirs, "encode", x, monkeypatch)
    assert moments.shape == (1, (frames - 1) // 4 + 1, 4, 4, 8)


@pytest.mark.parametrize("frames", LATENTS)
def test_decode(bridge, pair, monkeypatch, frames):
    z = bridge.normal(1, frames, 4, 4, 4, seed=frames)
    video = compare_chunks(bridge, pair.ours, pair.theirs, "decode", z, monkeypatch)
    odd = frames % 2
    assert video.shape == (1, 4 * (frames - odd) + odd, 16, 16, 3)


@pytest.mark.parametrize(
    ("batch", "frames", "height", "width"),
    [
        (2, 5, 19, 14),
        pytest.param(2, 17, 13, 18, marks=pytest.mark.slow),
        pytest.param(1, 9, 23, 17, marks=pytest.mark.slow),
        pytest.param(3, 8, 4, 5, marks=pytest.mark.slow),
    ],
)
def test_odd_sizes_and_batches(bridge, pair, monkeypatch, batch, frames, height, width):
    x = bridge.normal(batch, frames, height, width, 3)
    moments = compare_chunks(bridge, pair.ours, pair.theirs, "encode", x, monkeypatch)
    assert moments.shape == (batch, (frames - 1) // 4 + 1, height // 4, width // 4, 8)
    z = bridge.normal(batch, 1 + frames // 4, height // 4, width // 4, 4)
    compare_chunks(bridge, pair.ours, pair.theirs, "decode", z, monkeypatch)


def clone(vae):
    """The same weights in a model of its own, whose modes may be changed."""
    if not isinstance(vae, torch.nn.Module):
        return jax.tree.map(lambda leaf: leaf, vae)
    other = diffusers.AutoencoderKLCogVideoX(**vae.config)
    other.load_state_dict(vae.state_dict())
    return other.eval()


def compare_modes(bridge, pair, direction, shape, tile=None, slicing=False):
    """The whole call against diffusers; returns the port and what it made."""
    ours, theirs = clone(pair.ours), clone(pair.theirs)
    for vae in (ours, theirs):
        if tile:
            vae.enable_tiling(*tile)
        if slicing:
            vae.enable_slicing()
    x = bridge.normal(*shape)
    reference = getattr(theirs, direction)(bridge.first(x), return_dict=False)[0]
    reference = bridge.last(getattr(reference, "parameters", reference))
    output = getattr(ours, direction)(x)
    output = np.asarray(getattr(output, "parameters", output))
    assert bridge.error(output, reference) < LIMIT
    if tile:
        ours.disable_tiling()
        whole = getattr(ours, direction)(x) if direction == "encode" else None
        del whole
        ours.enable_tiling()
    return ours, x, output


TILE = (16, 16, 0.25, 0.25)  # steps of 12, a blend of 4 pixels and of 1 latent
