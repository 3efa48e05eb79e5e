"""The CogVideoX pair: configurations, random weights, checkpoints good and bad."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxvae.io.diffusers_folder import split_source
from jaxvae.pairs.cogvideox.ladder import CONFIGS
from jaxvae.pairs.cogvideox.pair import PAIR
from jaxvae.pairs.cogvideox.reference import make_torch
from jaxvae.pairs.inputs import load_clip
from jaxvae.pairs.port import read_config
from jaxvae.pairs.reference import decode_torch, encode_torch, forward_torch
from parity.core.exceptions import InputError
from parity.core.pair import Case
from parity.pipeline import run_pair

WEIGHTS = "diffusion_pytorch_model.safetensors"
ENCODE = replace(PAIR, cases=lambda *given: PAIR.cases(*given)[:1])


@pytest.fixture(scope="module")
def saved(small_torch, tmp_path_factory):
    """The small model as diffusers saves it."""
    folder = tmp_path_factory.mktemp("saved")
    small_torch.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(saved, tmp_path / "vae")


def refused(folder, *parts):
    with pytest.raises(InputError) as caught:
        run_pair(ENCODE, {"weights": str(folder), "frames": 1})
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def tensors(folder, change):
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS)


@pytest.mark.slow
def test_a_checkpoint_of_both_sides(saved):
    report = run_pair(ENCODE, {"weights": str(saved), "frames": 1})
    assert not report.faults
    assert report.facts["weights"] == str(saved)
    assert report.table.rel_l2.max() < 1e-5


def test_what_the_pair_makes_is_said_by_the_pair():
    random = "random, torch.manual_seed(3), norm weights 1+0.3N, biases 0.2N"
    assert PAIR.facts(PAIR.resolved(), 3) == {"weights": random, "config": "default"}
    assert PAIR.facts(PAIR.resolved({"weights": "vae"}), 3)["config"] == "of the weights"


def test_a_pipeline_folder_and_a_repository(saved, tmp_path):
    assert split_source(str(saved)) == (str(saved), None)
    (tmp_path / "vae").mkdir()
    shutil.copy(saved / "config.json", tmp_path / "vae")
    assert split_source(str(tmp_path)) == (str(tmp_path), "vae")
    assert split_source("owner/name:vae") == ("owner/name", "vae")
    assert split_source("owner/name") == ("owner/name", None)


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    refused(folder, "config.json", str(folder))


def test_an_unknown_key_is_named(folder):
    edited(folder, colour="red")
    with pytest.warns(UserWarning, match="colour: not a field of AutoencoderKLCogVideoX"):
        assert not run_pair(ENCODE, {"weights": str(folder), "frames": 1}).faults


def test_another_model(folder):
    edited(folder, _class_name="AutoencoderKL")
    refused(folder, "'AutoencoderKL'", "AutoencoderKLCogVideoX")


def test_a_missing_tensor(folder):
    tensors(folder, lambda state: state.pop("encoder.conv_in.conv.bias"))
    refused(folder, "1 missing: encoder.conv_in.conv.bias")


def test_an_extra_tensor(folder):
    tensors(folder, lambda state: state.update(extra=torch.zeros(2)))
    refused(folder, "1 unexpected: extra")


def test_a_misshapen_tensor(folder):
    tensors(folder, lambda state: state.update({"decoder.conv_in.conv.bias": torch.zeros(3)}))
    refused(folder, "decoder.conv_in.conv.bias (expected (32,), found (3,))")


def test_a_pickle_is_refused(folder):
    (folder / WEIGHTS).unlink()
    torch.save({}, folder / "diffusion_pytorch_model.bin")
    refused(folder, "diffusion_pytorch_model.bin", "safetensors")


def test_no_such_folder(tmp_path):
    refused(tmp_path / "gone", "gone")


def test_configurations(tmp_path):
    small = read_config(CONFIGS, "small")
    resampling = len(small.block_out_channels) - 1
    assert resampling >= 2
    assert small.time_levels == resampling
    assert all(c // small.norm_num_groups > 1 for c in small.block_out_channels)
    assert len(set(small.block_out_channels)) > 1  # a shortcut
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small.to_dict()))
    assert read_config(CONFIGS, str(path)) == small
    with pytest.raises(InputError, match="no configuration 'tiny'; expected default, small or"):
        read_config(CONFIGS, "tiny")
    path.write_text('{"layers_per_block": -1}')
    with pytest.raises(InputError, match="layers_per_block"):
        read_config(CONFIGS, str(path))
    assert set(CONFIGS) == {"default", "small"}


def test_random_weights_are_seeded_and_hide_nothing(small_torch):
    again = make_torch(None, "small", 0).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in small_torch.state_dict().items())
    other = make_torch(None, "small", 1).state_dict()
    assert not torch.equal(
        other["encoder.conv_in.conv.weight"], again["encoder.conv_in.conv.weight"]
    )
    norms = torch.cat(
        [m.weight for m in small_torch.modules() if isinstance(m, torch.nn.GroupNorm)]
    )
    assert norms.mean().item() == pytest.approx(1, abs=0.05)
    assert norms.std().item() == pytest.approx(0.3, abs=0.05)
    biases = torch.cat([p for name, p in small_torch.named_parameters() if name.endswith("bias")])
    assert biases.std().item() == pytest.approx(0.2, abs=0.02)


def test_making_a_model_leaves_the_global_random_state_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    make_torch(None, "small", 0)
    assert torch.equal(torch.rand(3), expected)


def test_the_port_has_the_reference_weights(small_torch, small_nnx):
    kernel = small_torch.encoder.conv_in.conv.weight.detach().numpy()
    ours = np.asarray(small_nnx.encoder.conv_in.conv.kernel[...])
    np.testing.assert_array_equal(ours, kernel.transpose(2, 3, 4, 1, 0))


def test_a_model_without_parameters_to_share_is_an_input_error(small_torch):
    with pytest.raises(InputError, match="the tensors do not fit the model"):
        PAIR.make_nnx({"weights": None, "config": "default"}, small_torch)


@pytest.mark.slow
def test_the_reference_reconstructs_what_it_encodes_and_decodes(small_torch):
    """The ladder takes its video of the clip for what the whole returns."""
    sample = torch.from_numpy(load_clip(None, 17, (64, 64), 0).frames)
    with torch.no_grad():
        mean = encode_torch(small_torch, sample)["mean"]
        assert torch.equal(forward_torch(small_torch, sample), decode_torch(small_torch, mean))


def test_noise_goes_to_one_module_per_signature(small_torch):
    options = PAIR.resolved({"frames": 1, "size": "16x16"})
    noise = [case for case in PAIR.cases(small_torch, options, 0) if "/clip" not in case.name]
    paths = {case.path for case in noise}
    kinds = {type(small_torch.get_submodule(path)).__name__ for path in paths}
    assert {"CogVideoXResnetBlock3D", "CogVideoXSpatialNorm3D", "Conv2d", "SiLU"} <= kinds
    resnets = [path for path in paths if path.split(".")[-2:-1] == ["resnets"]]
    assert len(resnets) == 4  # with and without shortcut, with and without spatial norm
    down = [path for path in paths if path.endswith("downsamplers.0")]
    assert len(down) == 1  # both compress time in the small configuration
    assert len(noise) == 2 * len(paths)  # odd T, and a large mean with even T
    # 2-D convolutions have time folded into the batch
    batches = {case.args[0].shape[0] for case in noise if case.args[0].ndim == 5}
    assert batches == {1, 2}


@pytest.mark.parametrize(
    ("encoded", "decoded", "single"),
    [
        ((17,), (5,), []),
        ((9,), (5,), ["encode"]),
        ((17,), (3,), []),
        ((9,), (3,), ["encode", "decode"]),
    ],
)
def test_what_a_single_chunk_leaves_out(encoded, decoded, single, small_torch):
    def some(count, function, channels):
        return Case("c", (np.zeros((1, channels, count, 8, 8), np.float32),), torch=function)

    given = [some(count, encode_torch, 3) for count in encoded]
    given += [some(count, decode_torch, 8) for count in decoded]
    found = PAIR.unexercised(small_torch, given)
    assert [gap.split(" ran in one chunk")[0] for gap in found[:-1]] == single
    assert found[-1] == "tiling was off: no seam between tiles"
