"""The full model, 215.6 M parameters: the figures that the project promises."""

import json
import os
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch

from jaxvae.pairs.cogvideox.pair import PAIR
from jaxvae.pairs.cogvideox.reference import make_torch
from jaxvae.pairs.inputs import load_clip
from parity.core.limits import r_limit
from parity.measure.noise import score
from tests.commands import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.parity]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `make report` writes, in a process of its own: its memory is measured."""
    out = tmp_path_factory.mktemp("report")
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("JAX_", "XLA_"))}  # fmt: skip
    run = subprocess.run([COMMAND, "run", "cogvideox", "--out", out], env=env, check=False)
    assert run.returncode in (0, 1)
    return out


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def table(folder):
    return pd.read_csv(folder / "layers.csv").fillna({"path": "", "leaf": ""})


def outputs(table, case):
    return table[(table["case"] == case) & (table["path"] == "")]


def test_every_gate_holds(report):
    assert report["verdict"] == "PASS", report["faults"]
    assert report["facts"]["parameters"] == 215_583_907


def test_encode_and_decode(table):
    encode, decode = outputs(table, "encode/clip"), outputs(table, "decode/clip")
    mean = encode[encode["leaf"] == "mean"]
    assert mean.mae.max() < 2e-6
    for rows in (mean, decode):
        assert rows.max_abs.max() < 1e-5
        assert rows.rel_l2.max() < 5e-6
        assert rows.ref_rms.min() > 0.05


@pytest.fixture(scope="module")
def outputs_alone():
    """What both sides and PyTorch in float64 return for the clip: port, reference, exact."""
    reference = make_torch(None, None, 0)
    port = PAIR.make_nnx({"weights": None, "config": None}, reference)
    sample = torch.from_numpy(load_clip(None, 17, (64, 64), 0).frames)

    def last(tensor):
        return np.moveaxis(tensor.numpy(), 1, -1)

    with torch.no_grad():
        latents = reference.encode(sample).latent_dist.mode()
        video = reference.decode(latents).sample
        reference.double()
        exact = reference.encode(sample.double()).latent_dist.mode()
        exact_video = reference.decode(latents.double()).sample
    return {
        "encode": (np.asarray(port.encode(last(sample)).mode()), last(latents), last(exact)),
        "decode": (np.asarray(port.decode(last(latents))), last(video), last(exact_video)),
    }


@pytest.mark.parametrize("name", ["encode", "decode"])
def test_free_running_output_is_as_near_to_float64_as_pytorchs(outputs_alone, name):
    ours, theirs, exact = outputs_alone[name]
    assert score(theirs, ours, exact).r <= r_limit("AutoencoderKLCogVideoX").warn


def test_every_inclusive_error_is_round_off(table):
    limited = table[~table["case"].str.contains("mean30")]
    assert set(limited.grade) <= {"perfect", "excellent"}
    assert set(table.verdict) == {"PASS"}


def test_coverage(report):
    coverage = report["coverage"]
    assert len(coverage["matched"]) + len(coverage["declared"]) == coverage["modules"] == 532
    assert {path.split(".")[-1] for path in coverage["declared"]} == {
        "down_blocks", "up_blocks", "resnets", "downsamplers", "upsamplers",
    }  # fmt: skip
    assert coverage["matched_parameters"] == coverage["parameters"] == 436


def test_memory(report):
    """At most 8 GiB in all, and 3 times the weights of a side beside the largest stage."""
    facts = report["facts"]
    assert facts["peak_memory_gib"] <= 8
    assert facts["largest_stage_gib"] <= 3
    allowed = 3 * facts["weights_gib"] + facts["largest_stage_gib"]
    assert facts["peak_memory_above_start_gib"] <= allowed
