from functools import partial

import diffusers
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxvae import CogVideoXVAEConfig
from jaxvae.models.cogvideox.switches import Switches
from jaxvae.run import tiling
from jaxvae.run.chunks import chunk_bounds
from tests.jaxvae.conftest import Bridge

# No layer of either model runs in most of these tests: both get a coder that notes which lines it
# is given, which is told by their values, and returns every r-th of them, or each r times.


class TheirCoder(torch.nn.Module):
    def __init__(self, shape, ratio):
        super().__init__()
        self.shape, self.ratio = shape, ratio
        self.seen = []

    def forward(self, x, conv_cache=None):
        ends = (np.unravel_index(int(x.movedim(1, -1).flatten()[i]), self.shape) for i in (0, -1))
        self.seen.append(tuple((int(a), int(b) + 1) for a, b in zip(*ends, strict=True))[:4])
        assert (conv_cache is None) == (self.seen[-1][1][0] == 0)  # fresh in every tile
        return self.resample(x), {}

    def resample(self, x):
        x = x - 0.5 * x[..., :1, :1]  # tiles differ where they overlap
        if self.ratio < 0:
            return x.repeat_interleave(-self.ratio, -1).repeat_interleave(-self.ratio, -2)
        if min(x.shape[-2:]) < self.ratio:
            raise RuntimeError("Kernel size can't be greater than actual input size")
        return x[..., self.ratio - 1 :: self.ratio, self.ratio - 1 :: self.ratio]


def iota(shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


class Tiles:
    """Both sides of one geometry: what each coder gets, what is blended and what comes out."""

    def __init__(self, monkeypatch, blocks=3, **sizes):
        fields = {
            "block_out_channels": (4,) * blocks,
            "down_block_types": ("CogVideoXDownBlock3D",) * blocks,
            "up_block_types": ("CogVideoXUpBlock3D",) * blocks,
            "norm_num_groups": 2,
            "layers_per_block": 1,
        } | sizes
        with torch.device("meta"):
            self.theirs = diffusers.AutoencoderKLCogVideoX(**fields)
        self.ours = Switches(CogVideoXVAEConfig(**fields))
        self.both = (self.ours, self.theirs)
        self.ratio = 2 ** (blocks - 1)
        self.patch = monkeypatch

    def theirs_gives(self, direction, video):
        coder = TheirCoder(video.shape, self.ratio if direction == "encode" else -self.ratio)
        setattr(self.theirs, f"{direction}r", coder)
        blended = []
        for name in ("blend_v", "blend_h"):

            def blend(a, b, extent, name=name):
                blended.append((name, extent))
                return getattr(type(self.theirs), name)(self.theirs, a, b, extent)

            self.patch.setattr(self.theirs, name, blend, raising=False)
        joined = getattr(self.theirs, direction)(Bridge.first(video), return_dict=False)[0]
        joined = Bridge.last(getattr(joined, "parameters", joined))
        return coder.seen, blended, joined

    def ours_gives(self, direction, video):
        """The same of our plans, in NumPy: each shape would be a program of its own in JAX."""
        seen, blended = [], []
        size = {"encode": 8, "decode": 2}[direction]
        windows = self.ours.sample_windows if direction == "encode" else self.ours.latent_windows
        coder = TheirCoder(video.shape, self.ratio if direction == "encode" else -self.ratio)

        def run(window):
            frames = []
            for bounds in chunk_bounds(video.shape[1], size):
                cut = (window.samples, bounds, window.rows, window.columns)
                seen.append(cut)
                chunk = video[tuple(slice(*one) for one in cut)]
                frames.append(Bridge.last(coder.resample(Bridge.first(chunk))))
            return np.concatenate(frames, axis=1)

        def blend(before, tile, extent, axis):
            blended.append(("blend_v" if axis == 2 else "blend_h", extent))
            method = getattr(type(self.theirs), blended[-1][0])
            a, b = (Bridge.first(x).clone() for x in (before, tile))
            return Bridge.last(method(None, a, b, extent))  # a copy: nothing is written back here

        self.patch.setattr(tiling, "blend", blend)
        self.patch.setattr(tiling, "join", np.concatenate)
        return seen, blended, windows(video.shape).join(run)

    def compare(self, direction, shape):
        """Every cut and every blend in its order, and every value; returns cuts and size."""
        video = iota(shape)
        seen, blended, joined = self.ours_gives(direction, video)
        their_seen, their_blended, reference = self.theirs_gives(direction, video)
        assert seen == their_seen
        assert blended == their_blended
        assert np.array_equal(joined, reference)
        return seen, reference.shape[2:4]


@pytest.fixture
def tiles(monkeypatch):
    return partial(Tiles, monkeypatch)


@pytest.mark.parametrize(
    ("direction", "shape", "tile", "overlap", "expected"),
    [
        ("encode", (1, 1, 32, 32, 2), (16, 16), (0.25, 0.25), (8, 8)),
        ("encode", (1, 9, 46, 41, 2), (16, 16), (0.25, 0.25), (11, 10)),  # uneven at both edges
        ("encode", (2, 17, 33, 29, 2), (16, 12), (0.25, 1 / 3), (8, 7)),
        ("decode", (1, 1, 8, 8, 2), (16, 16), (0.25, 0.25), (32, 32)),
        ("decode", (1, 5, 11, 10, 2), (16, 16), (0.25, 0.25), (44, 40)),
        ("decode", (2, 4, 9, 8, 2), (16, 12), (0.5, 1 / 3), (36, 32)),
        # sizes that are no multiple of the ratio, and overlaps that truncate: the size is wrong
        ("encode", (1, 1, 50, 40, 2), (18, 14), (0.2, 0.3), (14, 13)),
        ("decode", (1, 1, 12, 11, 2), (18, 14), (0.2, 0.3), (57, 54)),
        # a negative overlap leaves gaps; extents larger than a tile
        ("encode", (1, 1, 40, 40, 2), (16, 16), (-0.25, 0.7), (8, 19)),
        # higher than a tile, not wider: the width is one tile, and cropped like one
        ("decode", (1, 1, 9, 3, 2), (16, 16), (0.25, 0.25), (36, 12)),
        ("encode", (1, 1, 9, 33, 2), (16, 16), (0.25, 0.25), (2, 8)),
    ],
)
@pytest.mark.parametrize("slicing", [False, True])
def test_tiles_are_those_of_diffusers(tiles, direction, shape, tile, overlap, expected, slicing):
    geometry = tiles()
    for vae in geometry.both:
        vae.enable_tiling(*tile, *overlap)
        if slicing:
            vae.enable_slicing()
    seen, size = geometry.compare(direction, shape)
    assert size == expected
    assert len({(rows, columns) for *_, rows, columns in seen}) > 1
    assert {samples for samples, *_ in seen} == (
        {(0, 1), (1, 2)} if slicing and shape[0] == 2 else {(0, shape[0])}
    )


def test_sizes_at_the_resolutions_of_the_model(tiles):
    """768x1360 in tiles of 150, which is no multiple of 8, decodes to another size, as there."""
    for sizes, latent, expected in (
        ((None, None), (90, 160), (720, 1280)),
        ((150, 150), (96, 170), (798, 1456)),
    ):
        geometry = tiles(blocks=4)
        for vae in geometry.both:
            vae.enable_tiling(*sizes)
        assert geometry.compare("decode", (1, 1, *latent, 2))[1] == expected


def test_only_what_is_larger_than_a_tile_is_cut(tiles):
    geometry = tiles()
    for vae in geometry.both:
        vae.enable_tiling(16, 12, 0.25, 0.25)
    for size, count in (((16, 12), 1), ((15, 9), 1), ((17, 9), 2), ((16, 13), 4), ((12, 13), 2)):
        assert len(geometry.compare("encode", (1, 1, *size, 2))[0]) == count
    for size, count in (((4, 3), 1), ((5, 2), 2), ((4, 4), 4), ((3, 4), 2)):
        assert len(geometry.compare("decode", (1, 1, *size, 2))[0]) == count
    for vae in geometry.both:
        vae.disable_tiling()
    assert len(geometry.compare("encode", (1, 1, 40, 40, 2))[0]) == 1


SIZE = st.none() | st.integers(0, 40)
OVERLAP = st.none() | st.floats(0, 0.95)


@st.composite
def geometries(draw):
    direction = draw(st.sampled_from(("encode", "decode")))
    largest = 60 if direction == "encode" else 14
    image = draw(st.tuples(st.integers(8, largest), st.integers(8, largest)))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 18)), *image, 2)
    config = {
        "blocks": draw(st.integers(1, 4)),
        "sample_height": draw(st.integers(8, 80)),
        "sample_width": draw(st.integers(8, 80)),
    }
    tile = draw(st.tuples(SIZE, SIZE, OVERLAP, OVERLAP))
    return direction, shape, config, tile, draw(st.booleans())


def drawn_geometry(direction, shape, config, tile, slicing):
    """The same tiles, or an error where diffusers fails."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        geometry = Tiles(monkeypatch, **config)
        for vae in geometry.both:
            vae.enable_tiling(*tile)
            vae.use_slicing = slicing
        plan = {"encode": geometry.ours.sample_windows, "decode": geometry.ours.latent_windows}
        try:
            windows = plan[direction](shape)
        except ValueError:
            with pytest.raises((ValueError, RuntimeError)):
                geometry.theirs_gives(direction, iota(shape))
        else:
            assume(len(windows.rows.tiles) * len(windows.columns.tiles) < 50)  # for time's sake
            geometry.compare(direction, shape)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(geometry=geometries())
def test_drawn_tiles_are_those_of_diffusers(geometry):
    drawn_geometry(*geometry)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(geometry=geometries())
def test_many_drawn_tiles_are_those_of_diffusers(geometry):
    drawn_geometry(*geometry)


@pytest.mark.parametrize(("extent", "height"), [(4, 8), (5, 3), (1, 8), (0, 8), (-2, 8), (7, 7)])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_blending(bridge, name, extent, height):
    """bfloat16 is bit for bit that of diffusers; in float32 a sum may keep a product unrounded."""
    dtype = jnp.dtype(name)
    a, b = (bridge.normal(2, 3, 7, 9, 5, seed=seed) for seed in (1, 2))
    b = b[:, :, :height]
    for axis, method in ((2, "blend_v"), (3, "blend_h")):
        if axis == 3:
            a, b = a.swapaxes(2, 3), b.swapaxes(2, 3)
        before, tile = (bridge.first(x).to(getattr(torch, name)) for x in (a, b))
        blend = getattr(diffusers.AutoencoderKLCogVideoX, method)
        reference = bridge.last(blend(None, before, tile.clone(), extent).float())
        blended = tiling.blend(jnp.asarray(a, dtype), jnp.asarray(b, dtype), extent, axis)
        assert blended.dtype == dtype
        difference = np.abs(np.asarray(blended, np.float32) - reference)
        limit = 0 if name == "bfloat16" else 2**-23 * np.abs(reference).max()
        assert difference.max() <= limit
        assert (extent < 1) == np.array_equal(reference, bridge.last(tile.float()))


NAMES = [
    "use_tiling",
    *(f"tile_{kind}_{side}" for kind in ("sample_min", "latent_min", "overlap_factor")
      for side in ("height", "width")),
]  # fmt: skip


def test_enable_and_disable_set_what_diffusers_sets(tiles):
    ours, theirs = tiles(blocks=4, sample_height=101, sample_width=66).both
    ours_has, theirs_has = (
        partial(lambda side: [getattr(side, name) for name in NAMES], side)
        for side in (ours, theirs)
    )
    assert ours_has() == theirs_has()
    calls = [
        ((), {}),
        ((44, 39), {}),
        ((0, None, 0.0, 0.5), {}),  # 0 is as good as None
        ((), {"tile_sample_min_width": 17, "tile_overlap_factor_height": 0.3}),
    ]
    for args, kwargs in calls:
        for vae in (ours, theirs):
            vae.enable_tiling(*args, **kwargs)
        assert ours_has() == theirs_has()
        assert ours.use_tiling
    for vae in (ours, theirs):
        vae.disable_tiling()
    assert ours_has() == theirs_has()
    assert not ours.use_tiling
    for switch in ("enable_slicing", "disable_slicing"):
        for vae in (ours, theirs):
            getattr(vae, switch)()
        assert ours.use_slicing == theirs.use_slicing == (switch == "enable_slicing")


@pytest.mark.parametrize(
    ("direction", "size", "tile", "overlap", "message"),
    [
        ("encode", 40, 16, 0.99, r"tiles of 16 in height that overlap by 0.99 advance by 0"),
        ("encode", 40, 16, 1.5, r"advance by -8, expected at least 1; enlarge the tile"),
        ("decode", 10, 3, 0.25, r"tiles of 0 in height .* advance by 0"),
        ("encode", 27, 16, 0.25, r"27 in height leaves a tile of 3, and the model needs 4"),
    ],
)
def test_tiles_that_fail_in_pytorch_too(bridge, pair, direction, size, tile, overlap, message):
    x = bridge.normal(1, 1, size, size, 3 if direction == "encode" else 4)
    ours, theirs = bridge.clone(pair.ours), bridge.clone(pair.theirs)
    for vae in (ours, theirs):
        vae.enable_tiling(tile, tile, overlap)
    with pytest.raises((ValueError, RuntimeError)):
        getattr(theirs, direction)(bridge.first(x))
    with pytest.raises(ValueError, match=message):
        getattr(ours, direction)(x)
