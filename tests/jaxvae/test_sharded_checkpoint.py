"""Orbax checkpoints between shardings, on virtual devices of their own process."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxvae import WeightsError, load_checkpoint, save_checkpoint
from tests.commands import python
from tests.jaxvae.conftest import blocks

RESHARD = """
import json
import sys
import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxvae import AutoencoderKLCogVideoX, load_checkpoint, save_checkpoint

def parameters(vae):
    return {
        ".".join(map(str, (*path, name))): param[...]
        for path, module in nnx.iter_modules(vae)
        for name, param in vars(module).items()
        if isinstance(param, nnx.Param)
    }

def last_axis(mesh, axes):
    size = int(np.prod([mesh.shape[axis] for axis in axes]))
    def place(name, array):
        fits = array.shape[-1] % size == 0
        return NamedSharding(mesh, P(*(None,) * (len(array.shape) - 1), axes) if fits else P())
    return place

vae = AutoencoderKLCogVideoX.from_pretrained(sys.argv[1])
whole = {name: np.asarray(array) for name, array in parameters(vae).items()}
eight = jax.make_mesh((8,), ("x",))
place = last_axis(eight, ("x",))
for path, module in nnx.iter_modules(vae):
    for name, param in vars(module).items():
        if isinstance(param, nnx.Param):
            param.set_value(jax.device_put(param[...], place(name, param[...])))
save_checkpoint(vae, sys.argv[2])

found = {}
for label, placement in {
    "other": last_axis(jax.make_mesh((2, 4), ("a", "b")), ("b",)),
    "replicated": NamedSharding(eight, P()),
}.items():
    restored = parameters(load_checkpoint(sys.argv[2], placement))
    assert restored.keys() == whole.keys()
    parts = restored["encoder.conv_in.conv.kernel"].addressable_shards
    found[label] = [
        all(np.array_equal(restored[name], whole[name]) for name in whole),
        len(parts),
        list(parts[0].data.shape),
    ]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def vae(make_pair):
    changes = {
        **blocks(8),
    }
    return make_pair(**changes).ours


def test_saved_sharded_and_restored_otherwise(vae, tmp_path):
    vae.save_pretrained(tmp_path / "vae")
    done = python("-c", RESHARD, tmp_path / "vae", tmp_path / "sharded", devices=8)
    assert json.loads(done) == {
        "other": [True, 8, [3, 3, 3, 3, 2]],
        "replicated": [True, 8, [3, 3, 3, 3, 8]],
    }


@pytest.fixture(scope="module")
def saved(vae, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "saved"
    save_checkpoint(vae, folder)
    return folder


def parameters(vae):
    return jax.tree.leaves(nnx.state(vae, nnx.Param))


def test_on_one_device(vae, saved):
    restored = load_checkpoint(str(saved))
    assert restored.config == vae.config
    assert restored.encoder.mid_block.resnets[0].dropout.deterministic
    assert jax.tree.structure(nnx.state(restored)) == jax.tree.structure(nnx.state(vae))
    for ours, array in zip(parameters(vae), parameters(restored), strict=True):
        assert ours.dtype == array.dtype
        assert jnp.array_equal(ours, array)
        assert array.devices() == {jax.devices()[0]}


def test_rounded_to_another_dtype(vae, saved):
    restored = load_checkpoint(saved, param_dtype=jnp.bfloat16)
    assert restored.dtype == jnp.float32
    for ours, array in zip(parameters(vae), parameters(restored), strict=True):
        assert array.dtype == jnp.bfloat16
        assert jnp.array_equal(ours.astype(jnp.bfloat16), array)


def test_values_that_a_dtype_does_not_hold(vae, tmp_path):
    graph, state = nnx.split(vae)
    large = nnx.merge(graph, jax.tree.map(jnp.copy, state))
    large.encoder.conv_in.conv.bias[...] = jnp.full_like(large.encoder.conv_in.conv.bias[...], 1e6)
    save_checkpoint(large, tmp_path / "large")
    assert load_checkpoint(tmp_path / "large", param_dtype=jnp.bfloat16)
    with pytest.raises(WeightsError, match=r"large: 1 .* too large for float16: encoder.conv_in"):
        load_checkpoint(tmp_path / "large", param_dtype=jnp.float16)


def test_what_cannot_be_saved_or_restored(vae, saved, tmp_path):
    with pytest.raises(WeightsError, match="saved: expected a new folder, found one"):
        save_checkpoint(vae, saved)
    with pytest.raises(WeightsError, match=r"nowhere: expected a folder .*found none"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="cannot be restored"):
        load_checkpoint(tmp_path)
    damaged = shutil.copytree(saved, tmp_path / "damaged")
    config = damaged / "config" / "metadata"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"layers_per_block": 2}))
    with pytest.raises(WeightsError, match=r"damaged: .* do not fit the model: \d+ missing"):
        load_checkpoint(damaged)
    config.write_text(json.dumps(content | {"block_out_channels": [12]}))
    with pytest.raises(WeightsError, match=r"damaged: .*of another shape: .*expected .*12"):
        load_checkpoint(damaged)
    with pytest.raises(ValueError, match="precision: expected"):
        load_checkpoint(saved, precision="hi")
