"""Gradients against PyTorch's, by their distance from PyTorch in float64, and against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from jax.test_util import check_grads

from jaxvae import DiagonalGaussian, layers

ROUNDING = 2.0**-24
LIMIT = 10.0  # what fails a call of the ladder; 30 for the parameters of a norm


def ratio(ours, reference, exact):
    """Distance of ours from float64 in units of PyTorch's own, and at least of four roundings."""
    distance = np.sqrt(np.mean(np.square(ours.astype(np.float64) - exact)))
    own = np.sqrt(np.mean(np.square(reference.astype(np.float64) - exact)))
    return distance / max(own, 4 * ROUNDING * np.sqrt(np.mean(np.square(exact))))


@pytest.mark.parametrize("name", ["encode", "decode", "loss"])
def test_every_gradient_is_as_close_to_float64_as_pytorch(objective, name):
    arguments = objective.inputs(**{name: 1})
    value, (module, x, offset) = objective.gradients(objective.ours, *arguments)
    ours = objective.by_name(module) | {"x": np.asarray(x), "offset": np.asarray(offset)}
    their_value, reference = objective.their_gradients(objective.theirs, *arguments)
    exact_value, exact = objective.their_gradients(objective.exact, *arguments)
    assert ours.keys() == reference.keys() == exact.keys()
    ratios = {}
    for key, array in ours.items():
        assert array.shape == exact[key].shape, key
        if np.any(exact[key]):
            ratios[key] = ratio(array, reference[key], exact[key])
        else:  # nothing of the decoder reaches the posterior
            assert name == "encode", key
            assert key == "offset" or key.startswith("decoder."), key
            assert not np.any(array), key
    worst = max(ratios, key=ratios.get)
    assert ratios[worst] < LIMIT, worst
    assert len(ratios) == (len(ours) if name != "encode" else 1 + sum("encoder." in k for k in ours))
