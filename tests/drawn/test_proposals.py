"""What a report proposes to paste leaves nothing without a counterpart."""

import ast
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from tests.drawn.nets import right
from tests.reports import compare


class Spare(torch.nn.Module):
    """Called with numbers of its own, and nothing uses what it returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer(torch.ones(2, 3))


def with_spare(reference, names, rng):
    """The net with modules at places and of names that are drawn, which the port does not have."""
    modules = [one for _, one in reference.named_modules() if type(one).forward is not None]
    for name in names:
        owner = modules[int(rng.integers(len(modules)))]
        torch.manual_seed(int(rng.integers(1000)))
        owner.add_module(name, Spare(torch.nn.Linear(3, int(rng.integers(2, 5)))))
        owner.register_forward_pre_hook(partial(_call, name))


def _call(name, owner, args):
    getattr(owner, name)()


def with_leaves(port, count, rng):
    """Parameters in modules of the port that are of nothing."""
    modules = [one for _, one in nnx.iter_graph(port) if isinstance(one, nnx.Module)]
    modules = [one for one in modules if not isinstance(one, (nnx.List, nnx.Dict))]
    for at in range(count):
        owner = modules[int(rng.integers(len(modules)))]
        values = rng.standard_normal((7, 3)).astype(np.float32)
        setattr(owner, f"w{at}", nnx.Param(jnp.asarray(values)))


def check(seed):
    rng, drawn = np.random.default_rng([seed, 9]), right(seed)
    names = [f"{word}{seed}" for word in rng.permutation(["fc", "proj", "norm"])[: rng.integers(3)]]
    with_spare(drawn.reference, names, rng)
    with_leaves(drawn.port, int(rng.integers(3)), rng)
    with jax.numpy_rank_promotion("allow"):
        report = compare(drawn.reference, drawn.port, drawn.args)
        if report.coverage.complete:
            assert report.coverage.proposal == ""
            return False
        proposal = report.coverage.proposal
        if not proposal:  # nothing was found that helps
            return False
        ignore = ast.literal_eval(proposal.removeprefix("ignore="))
        again = compare(drawn.reference, drawn.port, drawn.args, ignore=ignore)
    assert again.coverage.complete, (proposal, again.notes)
    assert again.verdict in ("PASS", "WARN"), (proposal, again.notes, again.faults)
    return True


def test_following_a_proposal_ends_in_a_match():
    assert sum(map(check, range(6))) >= 3


@pytest.mark.slow
def test_following_a_proposal_ends_in_a_match_100():
    assert sum(map(check, range(6, 100))) >= 40
