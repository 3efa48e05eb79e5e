"""Training: twenty steps on the real clip follow PyTorch's, and the example runs."""

import copy
import re
import runpy
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import torch

from jaxvae.pairs.inputs import load_clip
from tests.commands import python

STEPS = 20
ROUNDING = 2.0**-24
EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"
LIMIT = 10.0  # what fails a call of the ladder
OPTIMISERS = {
    "adam": (lambda: optax.adam(3e-3), lambda p: torch.optim.Adam(p, lr=3e-3)),
    "momentum": (
        lambda: optax.sgd(1e-2, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    ),
}


def batches(objective):
    """The clip with new noise for each step; only the loss counts."""
    height, width = objective.video[2:4]
    clip = load_clip(None, objective.video[1], (height, width), 0)
    video = np.ascontiguousarray(np.moveaxis(clip.frames, 1, -1))
    assert video.shape == objective.video
    for step in range(STEPS):
        _, offset, noise, weights = objective.inputs(seed=10 * step, loss=1)
        yield video, offset, noise, weights


def their_losses(objective, model, make):
    model = copy.deepcopy(model)
    optimiser = make(model.parameters())
    losses = []
    for arguments in batches(objective):
        value, _ = objective.their_gradients(model, *arguments)
        losses.append(value)
        optimiser.step()
    return np.array(losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_the_loss_follows_that_of_pytorch(bridge, objective, name):
    optimiser, theirs = OPTIMISERS[name][0](), OPTIMISERS[name][1]
    vae, state = objective.ours, optimiser.init(objective.ours)

    def update(vae, state, gradients):
        updates, state = optimiser.update(gradients, state, vae)
        return optax.apply_updates(vae, updates), state

    update = jax.jit(update)
    losses = []
    for arguments in batches(objective):
        value, (gradients, *_) = objective.gradients(vae, *arguments)
        losses.append(float(value))
        vae, state = update(vae, state, gradients)
    reference = their_losses(objective, objective.theirs, theirs)
    exact = their_losses(objective, objective.exact, theirs)
    assert exact[-1] < 0.5 * exact[0]
    # The distance from PyTorch in float64, by PyTorch's own, at least four roundings.
    own = max(np.abs(reference - exact).max(), 4 * ROUNDING * exact.max())
    assert np.abs(np.array(losses) - exact).max() < LIMIT * own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps: expected at least 1"),
        (["--frames", "-4"], "--frames a multiple of 4"),
        (["--video", "gone.mp4"], "gone.mp4: no such file"),
        (["--out", "gone/video.npy"], "--out: no folder gone"),
    ],
)
def test_what_the_example_cannot_use_is_said_in_one_line(capsys, words, message):
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLE))["main"](words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--checkpointing", "--size", "8"]])
def test_the_example(tmp_path, options):
    out = tmp_path / "video.npy"
    words = ("-W", "error", EXAMPLE, "--steps", 4, "--out", out, *options)
    printed = python(*words, PYTHONPATH=str(EXAMPLE.parents[1]))
    losses = [float(x) for x in re.findall(r"step \d: loss (\S+)", printed)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    size = 8 if options else 16
    assert np.load(out).shape == (9, size, size, 3)
