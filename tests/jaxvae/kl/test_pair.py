"""The ladder of the autoencoder of images on a real picture, and known mistakes in it."""

import pytest

from jaxvae.pairs.kl.ladder import CONFIGS, RUNGS
from jaxvae.pairs.kl.pair import PAIR
from jaxvae.pairs.port import R_LIMIT
from parity.core.exceptions import InputError
from parity.pipeline import run_pair
from tests.ladders import (
    check_checkpoint,
    check_coverage,
    check_outputs,
    check_ratchet,
    check_selftest,
)


@pytest.fixture(scope="module")
def ladder():
    """One run of the whole ladder on the small configuration and a real picture."""
    return run_pair(PAIR, {"config": "small"})


@pytest.mark.parity
def test_every_gate_holds(ladder):
    assert ladder.verdict == "PASS", ladder.faults
    assert ladder.facts["input"].startswith("astronaut.png of scikit-image")
    check_coverage(ladder)


@pytest.mark.parity
def test_nothing_is_worse_than_in_the_committed_baseline(ladder):
    check_ratchet(ladder, "kl")


@pytest.mark.parity
def test_rungs_and_outputs(ladder):
    table = ladder.table
    kinds = {kind for rung in RUNGS for kind in rung.kinds}
    assert set(table.kind) == kinds - {"Mish", "GELU", "ReLU"}  # other act_fn
    large = table["case"].str.contains("mean30")
    assert table[~large].incl_rel_l2.max() < 5e-6
    assert table[large].R.max() <= R_LIMIT
    check_outputs(ladder, "picture")


def test_what_it_is_made_of():
    for config in CONFIGS.values():
        assert PAIR.make_torch.__self__.model.config_class is type(config)
    assert PAIR.facts(PAIR.resolved(), 3)["config"] == "sd"
    with pytest.raises(InputError, match="no configuration 'tiny'; expected flux, sd, small or"):
        run_pair(PAIR, {"config": "tiny"})
    with pytest.raises(InputError, match="needs at least 4x4"):
        run_pair(PAIR, {"config": "small", "size": "3x8"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_known_mistakes_are_found_where_and_for_what_they_are(seed):
    check_selftest(PAIR, seed)


@pytest.mark.slow
def test_a_checkpoint_of_both_sides(kl, tmp_path):
    kl.theirs.save_pretrained(tmp_path)
    check_checkpoint(PAIR, tmp_path)
