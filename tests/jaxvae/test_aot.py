"""Programs in a file: loaded in another process they are the same, and a wrong file is refused."""

import hashlib
import json
import os
import re
import struct
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from jaxvae.devices import aot
from jaxvae.devices.aot import MAGIC, ProgramsError
from jaxvae.run import steps

LOAD = """
import json
import sys
import numpy as np
from jax import monitoring
from jaxvae import AutoencoderKLCogVideoX
from jaxvae.devices import aot

traced, compiled = [], []
def listen(event, duration, fun_name="", **kwargs):
    if event == "/jax/core/compile/jaxpr_trace_duration":
        traced.append(fun_name)
    if event == "/jax/core/compile/backend_compile_duration":
        compiled.append(fun_name)
monitoring.register_event_duration_secs_listener(listen)
folder = sys.argv[1]
vae = AutoencoderKLCogVideoX.from_pretrained(folder)
vae.num_sample_frames_batch_size = 4
aot.load(vae, folder + "/programs")
given = np.load(folder + "/given.npz")
np.savez(folder + "/found.npz", video=vae.decode(given["latent"]), moments=vae.encode(given["video"]).parameters)
print(json.dumps([name for name in traced + compiled if "_compiled" in name or "_chunk" in name]))
count = len(compiled)
vae.compile_ahead(given["video"].shape, given["latent"].shape)
assert len(compiled) == count
vae.decode(given["latent"][:, :3])
print(json.dumps([name for name in traced + compiled if "_compiled" in name or "_chunk" in name]))
"""  # noqa: E501

VIDEO, LATENT = (1, 9, 4, 4, 3), (1, 4, 2, 2, 2)


@pytest.fixture(scope="module")
def saved(objective, bridge, tmp_path_factory):
    """A folder with a model, its programs, and what it makes of one video and one latent."""
    folder = tmp_path_factory.mktemp("aot")
    vae = objective.ours
    vae.save_pretrained(folder)
    video, latent = bridge.normal(*VIDEO), bridge.normal(*LATENT)
    # what the cache on disk gives cannot be stored again: everything is in it, and fetched
    for _ in range(2):
        steps._compiled.clear_cache()
        vae.compile_ahead(VIDEO, LATENT)
    use = jax.config.jax_enable_compilation_cache
    aot.save(vae, folder / "programs", video=VIDEO, latent=LATENT)
    assert jax.config.jax_enable_compilation_cache == use
    np.savez(folder / "given.npz", video=video, latent=latent)
    np.savez(folder / "made.npz", moments=vae.encode(video).parameters, video=vae.decode(latent))
    return folder


def test_another_process_neither_traces_nor_compiles(saved):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD, saved],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded, others = map(json.loads, done.stdout.splitlines())
    assert loaded == []
    assert others != []  # another shape is compiled as always, and would be seen
    made, found = (np.load(saved / name) for name in ("made.npz", "found.npz"))
    for name in ("moments", "video"):
        assert np.array_equal(made[name], found[name])
    assert sorted(path.name for path in saved.iterdir() if path.name.startswith(".")) == []


def changed(data, change):
    """The file with another header and a digest that is right."""
    start = len(MAGIC) + 32
    (size,) = struct.unpack_from("<Q", data, start)
    header = json.loads(data[start + 8 : start + 8 + size])
    change(header)
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + data[start + 8 + size :]
    return MAGIC + hashlib.sha256(content).digest() + content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "is not what aot.save wrote"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "by its digest"),
        (lambda data: data[:30], "fetch it again"),
        (lambda data: b"", "expected a file that aot.save wrote"),
        (lambda data: changed(data, lambda h: h.update(jax="0.1")), "jax '0.1', expected '0"),
        (
            lambda data: changed(data, lambda h: h.update(device="TPU 0")),
            "device 'TPU 0', expected",
        ),
        (lambda data: changed(data, lambda h: h.pop("machine")), "machine None, expected"),
        (
            lambda data: changed(data, lambda h: h["config"].update(norm_eps=1)),
            "config {'norm_eps': 1}, ",
        ),
        (lambda data: changed(data, lambda h: h["programs"][0].update(structure="")), "in another"),
    ],
)
def test_files_that_are_refused(saved, objective, tmp_path, monkeypatch, change, message):
    """Before anything is unpickled; the message names the file and is one line."""

    def never(*args, **kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr("jax.experimental.serialize_executable.deserialize_and_load", never)
    file = tmp_path / "programs"
    file.write_bytes(change((saved / "programs").read_bytes()))
    with pytest.raises(ProgramsError, match=f"{re.escape(str(file))}: .*{message}") as error:
        aot.load(objective.ours, file)
    assert "\n" not in str(error.value)


def test_another_model_is_refused(saved, make_pair, objective, bridge, tmp_path):
    with pytest.raises(ProgramsError, match=r"made for config .*, expected"):
        aot.load(make_pair(**objective.tiny | {"norm_eps": 1e-5}).ours, saved / "programs")
    vae = bridge.clone(objective.ours)
    vae.enable_gradient_checkpointing()
    with pytest.raises(ProgramsError, match="made for a model in another state"):
        aot.load(vae, saved / "programs")
    with pytest.raises(ProgramsError, match="cannot be read"):
        aot.load(objective.ours, tmp_path / "none")
    with pytest.raises(ProgramsError, match="cannot be written"):
        aot.save(objective.ours, tmp_path / "none" / "programs", latent=LATENT)
    with pytest.raises(ValueError, match="expected the shape of a video or a latent"):
        aot.save(objective.ours, tmp_path / "programs")
    on_host = bridge.clone(objective.ours)
    nnx.update(on_host, jax.tree.map(np.asarray, nnx.state(on_host)))
    with pytest.raises(ProgramsError, match=r"aot.load: .* found NumPy arrays; .*device_put"):
        aot.load(on_host, saved / "programs")
    vae = bridge.clone(objective.ours)
    axes = (jax.sharding.AxisType.Auto,)
    vae.enable_sharding(jax.make_mesh((1,), ("t",), axis_types=axes), time="t")
    with pytest.raises(ProgramsError, match=r"aot.save: .* call disable_sharding\(\)"):
        aot.save(vae, tmp_path / "programs", latent=LATENT)
