"""Tiles of one size that run together: stacked, mapped over, spread over devices."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxvae.run.steps import Coder, run_windows
from jaxvae.run.tiling import Axis, Windows
from tests.commands import python

BOUNDS = [(0, 3), (3, 5), (5, 7)]


class Step:
    """A step that is quickly compiled: statistics of a sample, a cache, half of height and width.

    It counts how often it is traced, by whether there was a cache.
    """

    def __init__(self):
        self.traced = []

    def __call__(self, parts, x, cache):
        self.traced.append(cache is not None)
        mean = jnp.mean(x, axis=(1, 2, 3, 4), keepdims=True)
        before = jnp.zeros_like(x[:, :1]) if cache is None else cache["last"]
        return (x[:, :, ::2, ::2] - mean) * parts + before[:, :, ::2, ::2], {"last": x[:, -1:]}


def plan(batch=2, rows=2, columns=3):
    """So many tiles of 8 lines, and one of 4 at each end: four sizes."""
    axes = [
        Axis((*((i * 8, i * 8 + 8) for i in range(count)), (count * 8, count * 8 + 4)), 2, None)
        for count in (rows, columns)
    ]
    shape = (batch, BOUNDS[-1][1], *(axis.tiles[-1][1] for axis in axes), 2)
    return shape, Windows(tuple((i, i + 1) for i in range(batch)), *axes)


def mapped(step, windows, at_once):
    return jax.jit(lambda parts, x: run_windows(Coder(step, parts), x, windows, BOUNDS, at_once))


def test_groups_hold_every_window_once():
    _, windows = plan()
    groups = windows.groups()
    assert [len(group) for group in groups] == [12, 4, 6, 2]
    assert len({window for group in groups for window in group}) == 24
    for group in groups:
        assert len({tuple(end - start for start, end in window) for window in group}) == 1
        assert group == sorted(group)


@pytest.mark.parametrize("at_once", [1, 5])  # five divide no group
def test_stacks_give_what_one_after_the_other_gives(bridge, at_once):
    """Every tile is what the step makes of it alone; outside of a transformation and inside."""
    shape, windows = plan(rows=1, columns=6)
    x, parts = bridge.normal(*shape), np.float32(1)

    def alone(window):
        samples, rows, columns = (slice(*bounds) for bounds in window)
        tile, last, frames = x[samples, :, rows, columns], 0, []
        for start, end in BOUNDS:
            chunk = tile[:, start:end]
            frames.append((chunk - chunk.mean() + last)[:, :, ::2, ::2])
            last = chunk[:, -1:]
        return np.concatenate(frames, axis=1)

    expected = windows.join(alone)
    looped = run_windows(Coder(Step(), parts), jnp.asarray(x), windows, BOUNDS, at_once)
    assert bridge.error(looped, expected) < 2e-6
    assert bridge.error(mapped(Step(), windows, at_once)(parts, x), expected) < 2e-6


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("tiles", [{}, {"rows": 5, "columns": 4}, {"batch": 1}])
def test_a_step_is_traced_twice_for_each_size(tiles, at_once):
    """A first chunk and a next one, of four sizes, however many tiles and samples there are."""
    shape, windows = plan(**tiles)
    x, parts = jnp.zeros(shape), jnp.ones(())
    step = Step()
    mapped(step, windows, at_once).lower(parts, x)
    assert sorted(step.traced) == [False] * 4 + [True] * 4
    step.traced.clear()
    run_windows(Coder(step, parts), x, windows, BOUNDS, at_once)
    assert sorted(step.traced) == [False] * 4 + [True] * 4


SPREAD = """
import json
import sys
import jax
import numpy as np
from jaxvae import AutoencoderKLCogVideoX

vae = AutoencoderKLCogVideoX.from_pretrained(sys.argv[1])
vae.enable_tiling(16, 8, 0.25, 0.25)  # cut in width alone
axes = json.loads(sys.argv[3])
axis_types = (jax.sharding.AxisType.Auto,) * len(axes)
mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=axis_types)
shape, windows, run = {
    "encode": ((1, 5, 8, 26, 3), vae.sample_windows, lambda vae, x: vae.encode(x).parameters),
    "decode": ((1, 9, 4, 13, 2), vae.latent_windows, lambda vae, x: vae.decode(x)),
}[sys.argv[2]]
x = np.random.default_rng(0).standard_normal(shape, np.float32)
sizes = [len(group) for group in windows(shape).groups()]
one = np.asarray(run(vae, x))
vae.enable_sharding(mesh, **{name: name for name in axes})
looped, mapped = run(vae, x), jax.jit(run)(vae, x)
try:
    vae.decode_stream(x)
except ValueError as error:
    refused = str(error)
print(json.dumps({
    "errors": [
        float(np.abs(np.asarray(y) - one).max() / np.abs(one).max()) for y in (looped, mapped)
    ],
    "devices": len(looped.devices()),
    "whole": looped.sharding.is_fully_replicated,
    "sizes": sizes,
    "refused": refused,
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "axes"),
    [
        ("encode", {"tiles": 8}),
        ("decode", {"tiles": 8}),
        ("decode", {"tiles": 4, "time": 2}),  # a first chunk, and three for two devices
    ],
)
def test_tiles_spread_over_devices(objective, tmp_path, method, axes):
    objective.ours.save_pretrained(tmp_path)
    words = ("-W", "error", "-c", SPREAD, tmp_path, method, json.dumps(axes))
    found = json.loads(python(*words, devices=8))
    assert max(found["errors"]) < 2e-6
    assert found["devices"] == 8
    assert found["whole"]
    assert "stream" in found["refused"]
    assert found["sizes"] == [4, 1]  # neither fills eight devices
