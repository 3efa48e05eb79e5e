"""Gradients: their distance from PyTorch in float64, and central differences without PyTorch."""

import copy

import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from flax import nnx
from jax.test_util import check_grads

from jaxvae import DiagonalGaussian
from jaxvae.layers import activations, norms
from tests.jaxvae.conftest import blocks

ROUNDING = 2.0**-24
LIMIT = 10.0  # what fails a call of the ladder; 30 for the parameters of a norm


def ratio(ours, reference, exact):
    """Distance of ours from float64 in units of PyTorch's own, and at least of four roundings."""
    distance = np.sqrt(np.mean(np.square(ours.astype(np.float64) - exact)))
    own = np.sqrt(np.mean(np.square(reference.astype(np.float64) - exact)))
    return distance / max(own, 4 * ROUNDING * np.sqrt(np.mean(np.square(exact))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encode", "decode", "loss"])
def test_every_gradient_is_as_close_to_float64_as_pytorch(objective, name):
    arguments = objective.inputs(**{name: 1})
    _, (module, x, offset) = objective.gradients(objective.ours, *arguments)
    ours = objective.by_name(module) | {"x": np.asarray(x), "offset": np.asarray(offset)}
    _, reference = objective.their_gradients(objective.theirs, *arguments)
    _, exact = objective.their_gradients(objective.exact, *arguments)
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
    over = {key for key, found in ratios.items() if found > (30 if "norm" in key else LIMIT)}
    assert not over, worst
    assert len(ratios) == (
        len(ours) if name != "encode" else 1 + sum("encoder." in k for k in ours)
    )


@pytest.mark.slow
def test_gradients_are_central_differences(objective, make_pair):
    """In float64 and without PyTorch: encode, decode and loss at once, through three chunks."""
    one_level = {
        **blocks(4),
        "temporal_compression_ratio": 1,
    }
    _against_differences(
        objective, make_pair(**objective.tiny | one_level).ours, (1, 6, 4, 3, 2), 2
    )


@pytest.mark.slow
def test_gradients_are_central_differences_with_resampling(objective):
    _against_differences(objective, objective.ours, objective.latent, 4)


def _against_differences(objective, model, latent, chunk):
    with jax.enable_x64(True):
        vae = nnx.clone(model)
        vae.dtype = jnp.dtype("float64")
        vae.num_sample_frames_batch_size = chunk
        vae = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), vae)
        scale = 2 if chunk == 4 else 1
        frames = latent[1] if scale == 1 else 2 * latent[1] - 1
        video = (1, frames, scale * latent[2], scale * latent[3], 3)
        rng = np.random.default_rng(0)
        noise, encode = (
            rng.standard_normal(latent),
            rng.standard_normal((*latent[:-1], 2 * latent[-1])),
        )
        decode = rng.standard_normal(video)
        weights = {"encode": encode, "decode": decode, "loss": np.float64(1)}
        x, offset = rng.standard_normal(video), np.zeros(latent)
        program = jax.jit(jax.value_and_grad(objective.value, argnums=(0, 1, 2)))

        # One program gives the value and the gradients that are checked against its differences.
        @jax.custom_vjp
        def value(*arguments):
            return program(*arguments, noise, weights)[0]

        value.defvjp(
            lambda *arguments: program(*arguments, noise, weights),
            lambda gradients, cotangent: jax.tree.map(lambda g: cotangent * g, gradients),
        )
        check_grads(value, (vae, x, offset), order=1, modes=["rev"], atol=1e-6, rtol=1e-6, eps=1e-5)


@pytest.mark.parametrize("name", ["silu", "mish", "gelu", "relu"])
def test_activations_as_pytorch_also_at_corners_and_far_out(name):
    x = np.concatenate([np.linspace(-30, 30, 4001), [0.0, -0.0, 1e4, -1e4]]).astype(np.float32)
    module = activations.get_activation(name)
    ours = np.asarray(jax.vmap(jax.grad(module))(jnp.asarray(x)))
    reference, exact = (
        _their_gradient(name, torch.tensor(x, dtype=d)) for d in (torch.float32, torch.float64)
    )
    assert ratio(ours, reference, exact) < LIMIT


def _their_gradient(name, x):
    with torch.enable_grad():
        source.get_activation(name)(x.requires_grad_()).sum().backward()
    return x.grad.numpy()


@pytest.mark.parametrize("mean", [0, 30])
def test_group_norm(bridge, mean):
    ours, theirs = bridge.load(
        lambda: norms.GroupNorm(4, 16, 1e-6, dtype=jnp.float32), torch.nn.GroupNorm(4, 16, 1e-6)
    )
    x = bridge.normal(2, 3, 4, 5, 16) + np.float32(mean)
    weight = bridge.normal(*x.shape, seed=1)
    gradient = jax.grad(lambda module, x: jnp.sum(weight * module(x)), argnums=(0, 1))
    module, x_gradient = jax.jit(gradient)(ours, x)
    found = {"scale": module.scale[...], "bias": module.bias[...], "x": x_gradient}

    def reference(dtype):
        module, y = copy.deepcopy(theirs).to(dtype), bridge.first(x).to(dtype).requires_grad_()
        with torch.enable_grad():
            (bridge.first(weight).to(dtype) * module(y)).sum().backward()
        return {
            "scale": module.weight.grad.numpy(),
            "bias": module.bias.grad.numpy(),
            "x": bridge.last(y.grad),
        }

    their, exact = reference(torch.float32), reference(torch.float64)
    for key, array in found.items():
        assert ratio(np.asarray(array), their[key], exact[key]) < LIMIT, key


def test_the_clamp_lets_the_gradient_through_at_its_ends(bridge):
    """PyTorch's does: 1 at -30 and 20 themselves, 0 beyond."""
    logvar = np.array([-31, -30, 0, 20, 21], np.float32).reshape(1, 1, 1, 1, 5)
    parameters = np.concatenate([np.zeros_like(logvar), logvar], axis=-1)
    ours = jax.grad(lambda p: jnp.sum(DiagonalGaussian(p).logvar))(jnp.asarray(parameters))
    theirs = bridge.first(parameters).requires_grad_()
    with torch.enable_grad():
        DiagonalGaussianDistribution(theirs).logvar.sum().backward()
    assert np.array_equal(ours, bridge.last(theirs.grad))
    assert np.array_equal(ours[..., 5:].reshape(-1), [0, 1, 1, 1, 0])
