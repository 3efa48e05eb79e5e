import json
import shutil

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import load_file, save_file

from jaxvae import AutoencoderKLCogVideoX, ConfigError, WeightsError
from jaxvae.io import weights

FILE = "diffusion_pytorch_model.safetensors"
load = AutoencoderKLCogVideoX.from_pretrained


@pytest.fixture(scope="session")
def saved(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    pair.theirs.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the saved model that a test may damage."""
    return shutil.copytree(saved, tmp_path / "vae")


def parameters(vae):
    return dict(nnx.to_flat_state(nnx.state(vae, nnx.Param)))


def same(a, b):
    a, b = parameters(a), parameters(b)
    return a.keys() == b.keys() and all(np.array_equal(a[k][...], b[k][...]) for k in a)


def test_every_tensor_arrives_bit_for_bit(pair, saved):
    vae = load(saved)
    state = pair.theirs.state_dict()
    assert same(vae, pair.ours)
    kernel = vae.decoder.up_blocks[0].resnets[0].conv1.conv.kernel[...]
    expected = state["decoder.up_blocks.0.resnets.0.conv1.conv.weight"].permute(2, 3, 4, 1, 0)
    assert np.array_equal(kernel, expected.numpy())
    total = sum(np.asarray(p[...], np.float64).sum() for p in parameters(vae).values())
    assert total == pytest.approx(sum(float(t.double().sum()) for t in state.values()))


def test_loaded_models_are_in_evaluation_mode(saved):
    assert load(saved).encoder.mid_block.resnets[0].dropout.deterministic


def test_later_writes_to_the_source_do_not_reach_the_model(bridge, pair):
    tensors = {name: array.copy() for name, array in bridge.state(pair.theirs).items()}
    vae = AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, tensors)
    for array in tensors.values():
        array.fill(np.nan)
    assert same(vae, pair.ours)


def test_subfolder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "pipeline" / "vae")
    assert load(str(tmp_path / "pipeline"), subfolder="vae").config.latent_channels == 4
    with pytest.raises(WeightsError, match=r"pipeline: expected a config\.json.*its subfolder vae"):
        load(tmp_path / "pipeline")


def test_dtype_and_precision(saved):
    vae = load(saved, dtype=jnp.bfloat16, precision="default")
    assert {p.dtype for p in jax.tree.leaves(parameters(vae))} == {jnp.dtype("bfloat16")}
    assert vae.encoder.conv_in.conv.precision == jax.lax.Precision.DEFAULT


def test_sharded(pair, tmp_path):
    pair.theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert same(load(tmp_path), pair.ours)


def test_an_index_comes_before_a_single_file(bridge, pair, tmp_path):
    """As in diffusers, whose own clean-up leaves the single file of an earlier save there."""
    pair.theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    zeros = {name: torch.zeros_like(t) for name, t in pair.theirs.state_dict().items()}
    save_file(zeros, tmp_path / "diffusion_pytorch_model.safetensors")
    assert jnp.any(
        AutoencoderKLCogVideoX.from_pretrained(tmp_path).encoder.conv_in.conv.kernel[...] != 0
    )


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", 3, ".."])
def test_shards_outside_of_the_folder_are_refused(folder, name):
    (folder / FILE).rename(folder.parent / "x.safetensors")
    index = folder / f"{FILE}.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(WeightsError, match=r"file names in the same folder, found .*refused"):
        load(folder)


def test_broken_indices(folder):
    (folder / FILE).unlink()
    index = folder / f"{FILE}.index.json"
    index.write_text('{"weight_map": {"w": "gone.safetensors"}}')
    with pytest.raises(WeightsError, match=r"names gone\.safetensors, which is not there"):
        load(folder)
    index.write_text("[]")
    with pytest.raises(WeightsError, match="expected a JSON object with a weight_map"):
        load(folder)


def test_the_prefix_of_compiled_models(pair, folder):
    tensors = load_file(folder / FILE)
    save_file({f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, folder / FILE)
    assert same(load(folder), pair.ours)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_pickles_are_refused(folder, suffix):
    (folder / FILE).rename(folder / f"weights{suffix}")
    with pytest.raises(WeightsError, match=rf"found only weights\{suffix}; a pickle can run code"):
        load(folder)


def test_no_weights_at_all(folder):
    (folder / FILE).unlink()
    with pytest.raises(WeightsError, match=r"found neither$"):
        load(folder)
    (folder / "diffusion_pytorch_model.fp16.safetensors").touch()
    with pytest.raises(WeightsError, match=r"neither; rename one of .*\.fp16\.safetensors"):
        load(folder)


@pytest.mark.parametrize("kept", [0, 4, 1000, -5])
def test_truncated_files_are_named(folder, kept):
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:kept])
    with pytest.raises(WeightsError, match=rf"vae/{FILE}: expected a complete safetensors file"):
        load(folder)


def test_bfloat16_files(pair, folder):
    tensors = {name: t.bfloat16() for name, t in load_file(folder / FILE).items()}
    save_file(tensors, folder / FILE)
    vae = load(folder)
    name = "encoder.conv_in.conv.weight"
    kernel = vae.encoder.conv_in.conv.kernel[...]
    assert kernel.dtype == jnp.float32
    assert np.array_equal(kernel, tensors[name].float().permute(2, 3, 4, 1, 0).numpy())


def test_everything_that_does_not_fit_is_in_one_error(bridge, pair):
    tensors = bridge.state(pair.theirs)
    del tensors["encoder.conv_in.conv.bias"]
    tensors["encoder.conv_in.conv.bais"] = np.zeros(8, np.float32)
    tensors["decoder.conv_out.conv.weight"] = np.zeros((3, 8, 3, 3), np.float32)
    with pytest.raises(WeightsError) as info:
        AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, tensors)
    message = str(info.value)
    assert "\n" not in message
    assert "1 missing: encoder.conv_in.conv.bias;" in message
    assert "1 unexpected: encoder.conv_in.conv.bais;" in message
    assert (
        "1 of another shape: decoder.conv_out.conv.weight"
        " (expected (3, 8, 3, 3, 3), found (3, 8, 3, 3))" in message
    )


def test_long_lists_are_cut(pair):
    with pytest.raises(WeightsError, match=r"\d+ missing: (\S+, ){8}and \d+ more\."):
        AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, {})


def test_a_tensor_given_twice_is_unexpected(bridge, pair):
    tensors = bridge.state(pair.theirs)
    tensors["_orig_mod.encoder.conv_in.conv.bias"] = tensors["encoder.conv_in.conv.bias"]
    with pytest.raises(WeightsError, match=r"1 unexpected: _orig_mod\.encoder\.conv_in\.conv\.b"):
        AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, tensors)


def test_a_failed_load_leaves_the_model_as_it_was(bridge, pair):
    vae = AutoencoderKLCogVideoX.from_torch_state(pair.ours.config, bridge.state(pair.theirs))
    tensors = {name: array + 1 for name, array in bridge.state(pair.theirs).items()}
    tensors.popitem()
    with pytest.raises(WeightsError, match="1 missing"):
        weights.load_torch_state(vae, tensors)
    assert same(vae, pair.ours)


def test_the_file_is_named_when_it_does_not_fit(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layers_per_block": 2}))
    with pytest.raises(WeightsError, match=r"vae: the tensors do not fit .*missing"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"latent_channels": 0}))
    with pytest.raises(ConfigError, match=r"vae/config\.json: latent_channels"):
        load(folder)


def test_parameters_of_an_unknown_layer_are_never_left_out():
    class Other(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros(1))

    with pytest.raises(TypeError, match="1 parameters, but only 0"):
        weights.load_torch_state(Other(), {})


def test_hub(saved, monkeypatch, tmp_path):
    asked = []

    def snapshot_download(repo, **options):
        asked.append((repo, options))
        return str(tmp_path)

    shutil.copytree(saved, tmp_path / "vae")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    vae = load("owner/name", subfolder="vae", revision="abc", local_files_only=True)
    assert vae.config.latent_channels == 4
    ((repo, options),) = asked
    assert repo == "owner/name"
    assert options["revision"] == "abc"
    assert options["local_files_only"] is True
    assert f"vae/{FILE}" in options["allow_patterns"]
    assert not any(pattern.endswith(".bin") for pattern in options["allow_patterns"])


def test_hub_failures_are_one_line(monkeypatch):
    def fail(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("not cached\nmany\nlines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(WeightsError, match=r"owner/name: not a folder here.*not cached\)$"):
        load("owner/name")


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "/no/where", "a/b/c"])
def test_what_is_neither_folder_nor_repository(name):
    with pytest.raises(WeightsError, match="expected a folder or a Hub id owner/name"):
        load(name)
