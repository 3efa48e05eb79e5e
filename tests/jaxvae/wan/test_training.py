"""Gradients, checkpoints of them, many devices, and how many programs there are."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae import AutoencoderKLWan, WanVAEConfig
from jaxvae.layers.norms import RMSNorm
from jaxvae.models.wan.causal_convolution import CausalConv3d
from jaxvae.models.wan.resampling import Resample
from tests.jaxvae.wan.conftest import CONFIGS, make_pair

SHAPE = (1, 9, 4, 6, 3)


def loss(vae, x, weights):
    posterior = vae.encode(x)
    return jnp.sum(weights[0] * posterior.parameters) + jnp.sum(
        weights[1] * vae.decode(posterior.mode())
    )


def their_loss(vae, x, weights):
    posterior = vae.encode(x).latent_dist
    video = vae.decode(posterior.mode()).sample
    return (weights[0] * posterior.parameters).sum() + (weights[1] * video).sum()


@pytest.fixture(scope="module")
def gradients():
    from tests.jaxvae.conftest import Bridge

    pair = make_pair("one level")
    ours = Bridge.clone(pair.ours)
    x, weights = Bridge.normal(*SHAPE), (Bridge.normal(1, 5, 2, 3, 4), Bridge.normal(*SHAPE))
    plain = jax.jit(jax.grad(loss, argnums=(0, 1)))(ours, x, weights)
    return pair, ours, x, weights, plain


@pytest.mark.slow
def test_gradients(bridge, gradients):
    pair, _, x, weights, (module, given) = gradients
    theirs = pair.theirs
    first = bridge.first(x).requires_grad_()
    theirs.zero_grad()
    with torch.enable_grad():
        their_loss(theirs, first, [bridge.first(w) for w in weights]).backward()
    found = _by_name(module)
    assert len(found) == len(dict(theirs.named_parameters()))
    for name, parameter in theirs.named_parameters():
        wanted = parameter.grad.numpy()
        array = found[name].reshape(wanted.shape)
        scale = max(np.abs(wanted).max(), 1e-3)
        assert np.abs(array - wanted).max() / scale < 2e-4, name
    assert bridge.error(given, bridge.last(first.grad)) < 2e-4


def _by_name(module):
    from jaxvae.io.saving import TorchState

    state = TorchState(module)
    return {name: state[name] for name in state}


@pytest.mark.slow
def test_checkpointed_gradients(bridge, gradients):
    _, ours, x, weights, plain = gradients
    vae = bridge.clone(ours)
    vae.enable_gradient_checkpointing()
    assert vae.is_gradient_checkpointing
    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(vae, x, weights)
    assert "remat" in str(jax.make_jaxpr(jax.grad(loss))(vae, x, weights))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        assert bridge.error(one, other) < 1e-4


def test_dropout_draws_anew_for_each_chunk_and_call(bridge):
    config = WanVAEConfig.from_dict({**CONFIGS["one level"], "dropout": 0.5})
    vae = AutoencoderKLWan(config, rngs=nnx.Rngs(0))
    vae.train()
    x = np.tile(bridge.normal(1, 1, 4, 6, 3), (1, 9, 1, 1, 1))  # chunks that are alike

    def drawn():
        counts = nnx.state(vae.encoder, nnx.RngCount)
        return {int(count) for count in jax.tree.leaves(counts)}

    outputs = [np.array(vae.encode(x).parameters) for _ in range(2)]
    assert not np.array_equal(*outputs)
    assert drawn() == {6}  # three chunks a call
    grads = nnx.jit(nnx.grad(lambda vae: jnp.sum(vae.encode(x).parameters ** 2)))
    first, second = (jax.tree.leaves(grads(vae)) for _ in range(2))
    assert not all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert drawn() == {12}
    vae.enable_sharding(jax.sharding.Mesh(jax.devices()[:1], "x"), batch="x")
    vae.encode(x)
    vae.disable_sharding()
    assert drawn() == {15}
    vae.eval()
    outputs = [vae.encode(x).parameters for _ in range(2)]
    assert np.array_equal(*outputs)


def test_the_gradient_of_zeros_is_finite():
    norm = RMSNorm(4)
    x = jnp.zeros((1, 1, 1, 2, 4)).at[..., 0, :].set(1)
    gradient = jax.grad(lambda x: jnp.sum(norm(x) ** 2))(x)
    assert np.isfinite(gradient).all()


@pytest.mark.slow
def test_first_chunks_and_the_state_rep(bridge):
    """Zeros are what the source pads with after "Rep", and a cache of one frame is filled up."""
    x = bridge.normal(1, 2, 4, 4, 8)
    up = Resample(8, "upsample3d", **bridge.build())
    output, cache = up(x[:, :1])
    assert output.shape == (1, 1, 8, 8, 4)
    assert not np.any(cache["time_conv"])
    assert up(x, cache)[0].shape == (1, 4, 8, 8, 4)
    conv = CausalConv3d(8, 8, 3, padding=1, **bridge.build())
    later = conv(x[:, 1:], x[:, :1])
    assert np.array_equal(later, conv(x[:, 1:], jnp.pad(x[:, :1], ((0, 0), (1, 0), *[(0, 0)] * 3))))
    assert bridge.error(later, conv(x)[:, 1:]) < 1e-6


@pytest.mark.slow
def test_two_programs_a_direction(bridge, wan21, compiled):
    ours = bridge.clone(wan21.ours)
    size = (12, 20)  # that no other test has
    for frames in (5, 9, 13, 21):
        ours(bridge.normal(1, frames, *size, 3))
    assert sum("_compiled" in name for name in compiled) == 4


@pytest.mark.slow
def test_over_devices():
    """Batch, height, width and time, where chunks are twice as long; tiles; and each stream."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.jaxvae.wan.over_devices"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split() for line in done.stdout.splitlines())
    assert set(found) == {"batch", "height", "width", "time", "time-batch", "tiles"}
    assert max(map(float, found.values())) < 2e-6, found
