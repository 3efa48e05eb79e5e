"""The model against diffusers, over frames, sizes, batches and tiles."""

import chex
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, reject, settings
from hypothesis import strategies as st

from jaxvae.models.cogvideox import autoencoder
from jaxvae.models.cogvideox.steps import decode_chunk, encode_chunk
from jaxvae.run.chunks import chunk_bounds
from jaxvae.run.steps import Coder
from tests.jaxvae.conftest import blocks

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


def compare_modes(bridge, pair, direction, shape, tile=(), slicing=False):
    """The whole call against diffusers; returns the port, what it got and what it made."""
    ours, theirs = bridge.clone(pair.ours), bridge.clone(pair.theirs)
    for vae in (ours, theirs):
        if tile:
            vae.enable_tiling(*tile)
        if slicing:
            vae.enable_slicing()
    x = bridge.normal(*shape)
    reference = getattr(theirs, direction)(bridge.first(x), return_dict=False)[0]
    reference = bridge.last(getattr(reference, "parameters", reference))
    output = run(ours, direction, x)
    assert bridge.error(output, reference) < LIMIT
    return ours, x, output


def run(vae, direction, x):
    output = getattr(vae, direction)(x)
    return np.asarray(getattr(output, "parameters", output))


TILE = (16, 16, 0.25, 0.25)  # steps of 12: 3x3 tiles, the last ones smaller, of four shapes


@pytest.mark.slow
def test_tiled_encode(bridge, pair, monkeypatch):
    """One program for each shape of tile, also for a second call and for a stream."""
    step = chex.assert_max_traces(encode_chunk, n=4)
    monkeypatch.setattr(autoencoder, "encode_chunk", step)
    ours, x, moments = compare_modes(bridge, pair, "encode", (2, 2, 31, 29, 3), TILE)
    windows = ours.sample_windows(x.shape)
    assert [len(axis.tiles) for axis in (windows.rows, windows.columns)] == [3, 3]
    other = run(ours, "encode", x[::-1] + 1)
    assert not np.array_equal(other, moments)
    assert np.array_equal(run(ours, "encode", x), moments)  # A, B, A
    streamed = list(ours.encode_stream((x[:, t : t + 1] for t in range(2)), 2))
    assert np.array_equal(streamed[0], moments)


@pytest.mark.slow
def test_tiled_and_sliced_decode(bridge, pair, monkeypatch):
    """Three columns, two chunks in each, of two samples one at a time."""
    step = chex.assert_max_traces(decode_chunk, n=4)
    monkeypatch.setattr(autoencoder, "decode_chunk", step)
    ours, z, video = compare_modes(bridge, pair, "decode", (2, 5, 3, 7, 4), TILE, slicing=True)
    assert len(ours.latent_windows(z.shape).columns.tiles) == 3
    for i in range(2):
        assert np.array_equal(run(ours, "decode", z[i : i + 1]), video[i : i + 1])
    frames = list(ours.decode_stream(z))
    assert [part.shape[1] for part in frames] == [9, 8]
    assert np.array_equal(np.concatenate(frames, axis=1), video)


@pytest.mark.slow
@pytest.mark.parametrize("slicing", [False, True])
@pytest.mark.parametrize(
    ("direction", "shape"),
    [
        ("encode", (2, 17, 31, 29, 3)),
        ("encode", (1, 9, 40, 36, 3)),
        ("decode", (2, 5, 8, 7, 4)),
        ("decode", (1, 3, 9, 10, 4)),
    ],
)
def test_three_by_three_tiles(bridge, pair, direction, shape, slicing):
    ours, x, output = compare_modes(bridge, pair, direction, shape, TILE, slicing)
    if slicing:
        single = run(ours, direction, x[-1:])
        assert np.array_equal(single, output[-1:])
    ours.disable_tiling()
    whole = run(ours, direction, x)
    assert whole.shape == output.shape
    assert bridge.error(whole, output) > 1e-3  # another function, not only another memory use


@pytest.mark.slow
def test_modes_inside_a_callers_jit(bridge, pair):
    ours = bridge.clone(pair.ours)
    ours.enable_tiling(*TILE)
    ours.enable_slicing()
    x, z = bridge.normal(2, 17, 20, 19, 3), bridge.normal(2, 5, 5, 4, 4)
    moments = jax.jit(lambda vae, x: vae.encode(x).parameters)(ours, x)
    assert bridge.error(moments, run(ours, "encode", x)) < 5e-6
    video = jax.jit(lambda vae, z: vae.decode(z))(ours, z)
    assert bridge.error(video, run(ours, "decode", z)) < 5e-6
    mapped = jax.vmap(lambda z: ours.decode(z[None])[0])(z)
    assert bridge.error(mapped, run(ours, "decode", z)) < 5e-6


@st.composite
def cases(draw):
    levels = draw(st.integers(2, 3))
    config = {
        **blocks(*(draw(st.sampled_from((4, 8, 12))) for _ in range(levels))),
        "norm_num_groups": draw(st.sampled_from((1, 2, 4))),
        "temporal_compression_ratio": draw(st.sampled_from((1, 2, 4))),
        "act_fn": draw(st.sampled_from(("silu", "mish", "gelu", "relu"))),
        "norm_eps": draw(st.sampled_from((1e-6, 1e-3))),
        "latent_channels": draw(st.integers(2, 5)),
    }
    direction = draw(st.sampled_from(("encode", "decode")))
    ratio = 1 if direction == "encode" else 2 ** (levels - 1)
    image = (draw(st.integers(8, 24)) // ratio for _ in range(2))
    frames = draw(st.integers(1, 18 if direction == "encode" else 6))
    channels = 3 if direction == "encode" else config["latent_channels"]
    shape = (draw(st.integers(1, 2)), frames, *image, channels)
    overlap = st.sampled_from((0.25, 1 / 3, 0.5))
    tile = st.tuples(st.sampled_from((8, 12, 16)), st.sampled_from((8, 13, 16)), overlap, overlap)
    return config, direction, shape, draw(st.just(()) | tile), draw(st.booleans())


def drawn_case(bridge, make_pair, case):
    config, direction, shape, tile, slicing = case
    pair = make_pair(**config)
    if tile:
        pair.ours.enable_tiling(*tile)
    windows = pair.ours.sample_windows if direction == "encode" else pair.ours.latent_windows
    try:
        windows(shape)
    except ValueError:
        reject()  # a tile that is too small for either side, see test_tiling.py
    compare_modes(bridge, pair, direction, shape, tile, slicing)


DRAWN = {
    "deadline": None,
    "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": [*HealthCheck],
}


CASE = {
    **blocks(4, 8),
    "norm_num_groups": 2,
    "temporal_compression_ratio": 2,
    "act_fn": "mish",
    "norm_eps": 1e-3,
    "latent_channels": 3,
}


@pytest.mark.slow
@settings(max_examples=25, **DRAWN)
@given(case=cases())
@example(case=(CASE, "decode", (2, 5, 6, 4, 3), (8, 8, 0.5, 0.25), True))
@example(case=(CASE | {"temporal_compression_ratio": 1}, "encode", (1, 17, 9, 8, 3), (), False))
def test_drawn_cases(bridge, make_pair, case):
    drawn_case(bridge, make_pair, case)
