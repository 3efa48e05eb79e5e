"""Saved models: the files of diffusers, bit for bit, one tensor at a time."""

import json
from pathlib import Path

import diffusers
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import load_file

from jaxvae import AutoencoderKLCogVideoX, WeightsError
from jaxvae.io import saving
from tests.commands import python

FILE = "diffusion_pytorch_model.safetensors"
load = AutoencoderKLCogVideoX.from_pretrained


def load_torch(folder, dtype=torch.float32):
    return diffusers.AutoencoderKLCogVideoX.from_pretrained(
        folder, use_safetensors=True, low_cpu_mem_usage=False, torch_dtype=dtype
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def same(a, b):
    a, b = (dict(nnx.to_flat_state(nnx.state(vae, nnx.Param))) for vae in (a, b))
    assert a.keys() == b.keys()
    return all(
        a[k].dtype == b[k].dtype and np.array_equal(a[k][...], b[k][...], equal_nan=True) for k in a
    )


def test_the_files_are_those_of_diffusers(pair, tmp_path):
    pair.theirs.save_pretrained(tmp_path / "theirs")
    pair.ours.save_pretrained(tmp_path / "ours")
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_shards_and_index(pair, tmp_path):
    pair.theirs.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    pair.ours.save_pretrained(tmp_path / "ours", max_shard_size="60KB")
    ours, theirs = contents(tmp_path / "ours"), contents(tmp_path / "theirs")
    assert len(ours) > 4
    index, reference = (json.loads(c[f"{FILE}.index.json"]) for c in (ours, theirs))
    assert index["metadata"] == reference["metadata"]
    assert index["weight_map"].keys() == reference["weight_map"].keys()
    shards = sorted(set(index["weight_map"].values()))
    assert shards == [
        f"diffusion_pytorch_model-{i:05d}-of-{len(shards):05d}.safetensors"
        for i in range(1, len(shards) + 1)
    ]
    assert same(load(tmp_path / "ours"), pair.ours)
    state = load_torch(tmp_path / "ours").state_dict()
    assert all(torch.equal(t, state[name]) for name, t in pair.theirs.state_dict().items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_to_torch_to_jax_and_back(bridge, pair, tmp_path, dtype):
    """Any bits survive, those of infinities, subnormal numbers and negative zero too."""
    state = bridge.state(pair.theirs)
    name = "encoder.conv_in.conv.weight"
    state[name] = state[name].copy()
    state[name].flat[:5] = [np.inf, -np.inf, -0.0, 1e-40, np.nan]
    ours = AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, state, dtype)
    ours.save_pretrained(tmp_path / "jax")
    theirs = load_torch(tmp_path / "jax", getattr(torch, dtype))
    assert {p.dtype for p in theirs.parameters()} == {getattr(torch, dtype)}
    theirs.save_pretrained(tmp_path / "torch")
    assert (tmp_path / "torch" / FILE).read_bytes() == (tmp_path / "jax" / FILE).read_bytes()
    again = load(tmp_path / "torch", dtype=dtype)
    assert same(again, ours)
    again.save_pretrained(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "jax")


def test_parameters_keep_their_dtype(bridge, pair, tmp_path):
    vae = AutoencoderKLCogVideoX.from_torch_state(
        pair.ours.config, bridge.state(pair.theirs), jnp.float32, param_dtype=jnp.bfloat16
    )
    vae.encoder.conv_in.conv.bias.set_value(jnp.ones(8, jnp.float32))  # wider: it comes first
    vae.save_pretrained(tmp_path)
    state = load_file(tmp_path / FILE)
    assert state["encoder.conv_in.conv.bias"].dtype == torch.float32
    assert state["encoder.conv_in.conv.weight"].dtype == torch.bfloat16
    assert same(load(tmp_path, param_dtype=jnp.bfloat16), load(tmp_path, dtype=jnp.bfloat16))


def test_an_earlier_save_is_replaced_and_other_files_stay(pair, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / f"{FILE}.mine").write_text("mine")
    pair.ours.save_pretrained(tmp_path, max_shard_size="60KB")
    pair.ours.save_pretrained(tmp_path)
    single = {"README.md", f"{FILE}.mine", "config.json", FILE}
    assert set(contents(tmp_path)) == single
    pair.ours.save_pretrained(str(tmp_path), max_shard_size=60_000)
    assert FILE not in contents(tmp_path)
    assert same(load(tmp_path), pair.ours)


def test_a_save_cut_short_while_files_move_cannot_be_loaded(pair, tmp_path, monkeypatch):
    pair.ours.save_pretrained(tmp_path, max_shard_size="60KB")
    replace, moved = Path.replace, []

    def fail(path, target):
        if len(moved) == 1:
            raise OSError(5, "Input/output error")
        moved.append(path)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WeightsError, match="cannot be written"):
        pair.ours.save_pretrained(tmp_path, max_shard_size="60KB")
    with pytest.raises(WeightsError, match=r"expected a config.json, found none"):
        load(tmp_path)


def test_a_save_that_fails_leaves_the_folder_as_it_was(bridge, pair, tmp_path, monkeypatch):
    pair.ours.save_pretrained(tmp_path, max_shard_size="60KB")
    before = contents(tmp_path)
    doubled = {name: 2 * array for name, array in bridge.state(pair.theirs).items()}
    other = AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, doubled)
    write = saving._write_tensors

    def fail(path, *args):
        write(path, *args)
        if "00002" in path.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "_write_tensors", fail)
    with pytest.raises(WeightsError, match=r"cannot be written .*No space left"):
        other.save_pretrained(tmp_path, max_shard_size="60KB")
    assert contents(tmp_path) == before
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="file: cannot be written"):
        pair.ours.save_pretrained(tmp_path / "file")


MEMORY = """
import json
import sys
import jax.numpy as jnp
from flax import nnx
from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig

config = CogVideoXVAEConfig(
    block_out_channels=(128, 192),
    down_block_types=("CogVideoXDownBlock3D",) * 2,
    up_block_types=("CogVideoXUpBlock3D",) * 2,
)

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def growth(run):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    before = status("VmRSS")
    run()
    return status("VmHWM") - before

vae = nnx.eval_shape(lambda: AutoencoderKLCogVideoX(config, rngs=nnx.Rngs(0)))
parameters = [param for _, param in nnx.to_flat_state(nnx.state(vae, nnx.Param))]
sizes = [4 * param.size for param in parameters]
for _, module in nnx.iter_modules(vae):
    for name, param in vars(module).items():
        if isinstance(param, nnx.Param):
            param.set_value(jnp.full(param.shape, 0.5))
saved = growth(lambda: vae.save_pretrained(sys.argv[1]))
kept = []
loaded = growth(lambda: kept.append(AutoencoderKLCogVideoX.from_pretrained(sys.argv[1])))
print(json.dumps([sum(sizes), max(sizes), saved, loaded]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak memory")
def test_memory_is_the_model_and_a_few_tensors(tmp_path):
    model, largest, saved, loaded = json.loads(python("-c", MEMORY, tmp_path))
    assert model > 50 * 2**20
    # A tensor as it is read, its transposed copy and the array made of it; and 16 MiB of tracing.
    assert saved < 3 * largest + 16 * 2**20
    assert loaded < model + 3 * largest + 16 * 2**20
