"""Over many devices the model computes what it computes on one."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from jaxvae.devices.sharding import Layout

SCRIPT = Path(__file__).with_name("over_devices.py")
LIMIT = 2e-6
PATIENCE = 1200
"""Seconds for a process, on a machine that does other things too."""
QUICK = ("batch", "width", "time")
SLOW = (
    "height",
    "all_eight_high",
    "batch_width",
    "height_width",
    "time_width",
    "time_batch_height",
)


def start(*words):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*children):
    try:
        outputs = [child.communicate(timeout=PATIENCE)[0] for child in children]
    finally:
        for child in children:
            child.kill()  # one that waits for the other would wait for ever
    for child, output in zip(children, outputs, strict=True):
        assert child.returncode == 0, output


@pytest.fixture(scope="module")
def model(objective, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding") / "vae"
    objective.ours.save_pretrained(folder)
    return folder


def results(model, modes):
    path = model.with_name(f"{modes[0]}.npz")
    finish(start(path, model, 8, *modes))
    return np.load(path)


@pytest.fixture(scope="module")
def quick(model):
    return results(model, QUICK)


@pytest.fixture(scope="module")
def slow(model):
    return results(model, SLOW)


def check(found, mode, reference="one/4x4"):
    told = json.loads(str(found["told"]))
    assert told[f"{mode}/compiled"] == 0  # all of it was compiled ahead
    for direction in ("encode", "decode"):
        agree(found[f"{mode}/{direction}"], found[f"{reference}/{direction}"])


def agree(ours, one):
    ours, one = np.float64(ours), np.float64(one)
    assert ours.shape == one.shape
    assert np.sqrt(np.mean((ours - one) ** 2) / np.mean(one**2)) < LIMIT
    assert np.abs(ours - one).max() / np.abs(one).max() < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("mode", QUICK)
def test_as_on_one_device(quick, mode):
    check(quick, mode)


@pytest.mark.slow
def test_what_a_device_holds_of_the_output(quick):
    told = json.loads(str(quick["told"]))
    assert told["batch/decode"] == [[2, 25, 8, 8, 3], [1, 25, 8, 8, 3]]
    assert told["width/encode"] == [[2, 13, 4, 4, 4], [2, 13, 4, 1, 4]]
    # 25 frames are no multiple of 3: each device gets all of them
    assert told["time/decode"] == [[2, 25, 8, 8, 3]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", SLOW)
def test_as_on_one_device_in_other_modes(slow, mode):
    check(slow, mode, "one/16x8" if mode == "all_eight_high" else "one/4x4")


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_streams_and_a_jit_of_the_callers(slow, direction):
    mode = "time_batch_height"
    chunks = [slow[f"{mode}/stream/{direction}/{i}"] for i in range(4)]  # 1, 2, 2 and 1
    frames = {"encode": [3, 4, 4, 2], "decode": [5, 8, 8, 4]}[direction]
    assert [chunk.shape[1] for chunk in chunks] == frames
    agree(np.concatenate(chunks, axis=1), slow[f"one/4x4/{direction}"])
    agree(slow[f"{mode}/jit/{direction}"], slow[f"one/4x4/{direction}"])
    told = json.loads(str(slow["told"]))
    # a full round stays where it was made
    whole, part = told[f"{mode}/stream/{direction}/1"]
    assert [a // b for a, b in zip(whole, part, strict=True)] == [2, 2, 2, 1, 1]


@pytest.mark.slow
def test_over_two_processes(model):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = model.with_name("processes.npz")
    modes = ("batch", "time_of_two")
    finish(*(start(path, model, 1, *modes, number, port) for number in (0, 1)))
    found = np.load(path)
    for mode in modes:
        check(found, mode)


def mesh(size, kind=AxisType.Auto):
    return AbstractMesh((size, 2), ("x", "y"), axis_types=(kind, kind))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, r"expected batch, .* of the mesh's axes \('x', 'y'\), found none"),
        ({"width": "z"}, "found width='z'"),
        ({"batch": "x", "time": "x"}, "found batch='x', time='x'"),
        ({"batch": ["x"]}, r"found batch=\['x'\]"),
    ],
)
def test_names_that_cannot_be(objective, bridge, axes, message):
    vae = bridge.clone(objective.ours)
    with pytest.raises(ValueError, match=f"enable_sharding: .*{message}"):
        vae.enable_sharding(mesh(8), **axes)
    assert vae.sharding is None


def test_what_is_no_mesh(objective, bridge):
    with pytest.raises(ValueError, match=r"expected a jax.sharding.Mesh, found a str"):
        bridge.clone(objective.ours).enable_sharding("x", batch="x")


def test_a_mesh_of_explicit_axes(objective, bridge):
    vae = bridge.clone(objective.ours)
    with pytest.raises(ValueError, match=r"found .*Explicit.*; make it with axis_types="):
        vae.enable_sharding(mesh(8, AxisType.Explicit), width="x")


@pytest.mark.parametrize(
    ("axes", "video", "message"),
    [
        ({"width": "x"}, (1, 5, 8, 12, 3), r"width .* 8 devices \('x'\), .* the 12 of the video"),
        ({"width": "x"}, (1, 5, 8, 8, 3), "width .* the 4 of down_blocks.0's output, the latent"),
        ({"height": "x"}, (1, 5, 24, 8, 3), "height .* the 12 of down_blocks.0's output"),
        ({"batch": "y"}, (3, 5, 8, 8, 3), "batch .* 2 devices .* the 3 of the input"),
        ({"width": "y"}, (1, 5, 8, 4, 3), "width .* 1 of the 2 of .*, the latent, in a mesh of 16"),
        ({"height": "y", "time": "x"}, (1, 5, 4, 8, 3), "height .* each with 1 of the 2 of"),
    ],
)
def test_what_does_not_split_evenly(objective, bridge, axes, video, message):
    vae = bridge.clone(objective.ours)
    vae.sharding = Layout(mesh(8), **axes)
    struct = jax.ShapeDtypeStruct(video, np.float32)
    with pytest.raises(ValueError, match=f"sharding: {message}"):
        jax.eval_shape(lambda x: vae.encode(x).parameters, struct)


CONVOLVED = """
import json, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
random, wrong = np.random.default_rng(0), []
for sizes in ((1, 2), (2, 2), (4, 2), (2, 3), (2, 4), (1, 8)):
    devices = jax.devices()[: sizes[0] * sizes[1]]
    mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    for rows in (1, 2, 3):
        x = random.standard_normal((sizes[0], rows * sizes[1], 4, 4)).astype("f4")
        kernel = random.standard_normal((3, 3, 4, 4)).astype("f4")
        one = jax.jit(lambda x: jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        for batch in (None, "x"):
            placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec(batch, "y")))
            if not np.allclose(one(placed), one(x), atol=1e-4):
                wrong.append([*sizes, rows])
print(json.dumps(wrong))
"""


def test_what_is_refused_is_what_xla_convolves_wrongly():
    """When this finds nothing wrong any more, `Layout.check` may take such rows."""
    done = subprocess.run(
        [sys.executable, "-c", CONVOLVED], capture_output=True, text=True, check=True
    )
    wrong = json.loads(done.stdout)
    assert {tuple(layout) for layout in wrong} == {(2, 2, 1), (4, 2, 1)}


def test_single_rows_where_the_mesh_has_no_more_devices(objective, bridge):
    vae = bridge.clone(objective.ours)
    vae.sharding = Layout(AbstractMesh((2,), ("y",), axis_types=(AxisType.Auto,)), width="y")
    struct = jax.ShapeDtypeStruct((1, 5, 8, 4, 3), np.float32)
    assert jax.eval_shape(lambda x: vae.encode(x).parameters, struct).shape[3] == 2


def test_a_latent_that_does_not_split_evenly(objective, bridge):
    vae = bridge.clone(objective.ours)
    vae.sharding = Layout(mesh(8), width="x")
    with pytest.raises(ValueError, match=r"sharding: width .* the 90 of the latent"):
        vae.decode(bridge.normal(1, 3, 4, 90, 2))


def test_modes_that_exclude_each_other(objective, bridge):
    vae = bridge.clone(objective.ours)
    vae.enable_slicing()
    vae.enable_tiling(8, 8)
    vae.sharding = Layout(mesh(2), batch="x")
    with pytest.raises(ValueError, match=r"found slices .* call disable_slicing\(\)"):
        vae.encode(bridge.normal(2, 5, 8, 8, 3))
    vae.disable_slicing()
    vae.sharding = Layout(mesh(2), height="x")
    with pytest.raises(ValueError, match=r"found 4 tiles .* call disable_tiling\(\)"):
        vae.encode(bridge.normal(2, 5, 12, 12, 3))
    with pytest.raises(ValueError, match="sharding: expected compiled=True, found False"):
        vae.encode(bridge.normal(2, 5, 8, 8, 3), compiled=False)


def test_chunks_too_short_to_be_split(objective, bridge):
    vae = bridge.clone(objective.ours)
    vae.num_latent_frames_batch_size = 1
    axes = (AxisType.Auto,)
    vae.enable_sharding(jax.make_mesh((1,), ("t",), axis_types=axes), time="t")
    with pytest.raises(ValueError, match=r"decode_stream: single_latents .* leave .* out"):
        next(vae.decode_stream(bridge.normal(1, 3, 4, 6, 2), single_latents=True))
    latent = jax.ShapeDtypeStruct((1, 3, 4, 6, 2), np.float32)
    with pytest.raises(ValueError, match=r"over time: expected chunks of at least 2 .* one of 1"):
        jax.eval_shape(vae.decode, latent)
