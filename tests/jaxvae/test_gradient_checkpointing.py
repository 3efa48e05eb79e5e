"""Gradient checkpointing: the same gradients in less memory, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX
from jaxvae.models.cogvideox import blocks
from parity.capture.nnx import record
from parity.core.store import Store

# What a gradient holds without checkpointing by what it holds with it.
FACTOR = 1.35


@pytest.fixture(scope="module")
def checkpointed(bridge, objective):
    """The tiny model with checkpointing on."""
    vae = AutoencoderKLCogVideoX.from_torch_state(
        objective.ours.config, bridge.state(objective.theirs)
    )
    vae.num_sample_frames_batch_size = objective.ours.num_sample_frames_batch_size
    vae.enable_gradient_checkpointing()
    return vae


def encode(vae, x):
    return jnp.mean(jnp.square(vae.encode(x).parameters))


def decode(vae, z):
    return jnp.mean(jnp.square(vae.decode(z)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (encode, (1, 13, 8, 12, 3)),
        (decode, (1, 7, 4, 6, 2)),
    ],
)
def test_the_same_gradients_in_less_memory(bridge, objective, checkpointed, function, shape):
    x = bridge.normal(*shape)
    gradient = jax.jit(jax.grad(function, argnums=(0, 1)))
    size, found = {}, {}
    for name, vae in (("plain", objective.ours), ("checkpointed", checkpointed)):
        program = gradient.lower(vae, x).compile()
        size[name] = program.memory_analysis().temp_size_in_bytes
        found[name] = [np.asarray(leaf) for leaf in jax.tree.leaves(program(vae, x))]
    assert size["plain"] > FACTOR * size["checkpointed"]
    assert len(found["plain"]) == 1 + len(list(objective.theirs.parameters()))
    for plain, other in zip(found["plain"], found["checkpointed"], strict=True):
        np.testing.assert_allclose(other, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


def test_without_a_gradient_nothing_changes(bridge, objective, checkpointed):
    """Bit for bit the same results, from a program of the same size."""
    x = bridge.normal(1, 4, 4, 6, 8)
    run = jax.jit(lambda block, x: block(x))
    sizes, results = set(), []
    for vae in (objective.ours, checkpointed):
        program = run.lower(vae.encoder.mid_block, x).compile()
        sizes.add(program.memory_analysis().temp_size_in_bytes)
        results.append(program(vae.encoder.mid_block, x))
    assert len(sizes) == 1
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_state_and_paths_are_those_without(objective, checkpointed):
    plain, other = (nnx.to_flat_state(nnx.state(vae)) for vae in (objective.ours, checkpointed))
    assert [path for path, _ in plain] == [path for path, _ in other]


def test_it_is_switched_for_the_whole_model(objective, bridge):
    vae = AutoencoderKLCogVideoX.from_torch_state(
        objective.ours.config, bridge.state(objective.theirs)
    )
    assert not vae.is_gradient_checkpointing
    vae.enable_gradient_checkpointing()
    ours = {
        ".".join(map(str, path))
        for path, module in nnx.iter_modules(vae)
        if getattr(module, "gradient_checkpointing", False)
    }
    theirs = objective.exact
    theirs.enable_gradient_checkpointing()
    expected = {name for name, m in theirs.named_modules() if vars(m).get("gradient_checkpointing")}
    theirs.disable_gradient_checkpointing()
    # The source checkpoints the blocks as well, from the encoder and the decoder.
    assert ours == expected - {"encoder", "decoder"}
    assert vae.is_gradient_checkpointing
    vae.disable_gradient_checkpointing()
    assert not vae.is_gradient_checkpointing


@pytest.mark.parametrize("enabled", [False, True])
def test_only_resnets_are_run_again(objective, checkpointed, enabled):
    vae = checkpointed if enabled else objective.ours
    resnets = sum(isinstance(m, blocks.ResnetBlock3D) for _, m in nnx.iter_modules(vae.decoder))
    z = jax.ShapeDtypeStruct((1, 2, 4, 6, 2), np.float32)
    jaxpr = jax.make_jaxpr(lambda z: vae.decode(z))(z)
    assert str(jaxpr).count("checkpoint[") + str(jaxpr).count("remat2[") == enabled * resnets


@pytest.mark.parametrize("jitted", [False, True])
def test_the_harness_sees_every_call(bridge, jitted):
    block = blocks.MidBlock3D(8, temb_channels=0, num_layers=2, resnet_groups=4, **bridge.build())
    x = bridge.normal(1, 2, 4, 4, 8)
    calls = {}
    for enabled in (False, True):
        block.gradient_checkpointing = enabled
        method = (lambda m, x: jax.jit(lambda m, x: m(x))(m, x)) if jitted else "__call__"
        with Store() as store:
            trace = record(block, method, (x,), {}, store=store)
            calls[enabled] = [(call.path, len(call.outputs)) for call in trace.calls]
    assert calls[True] == calls[False]
    assert len(calls[True]) == 1 + 2 * 10
    assert block.gradient_checkpointing


@pytest.mark.slow
def test_dropout_is_drawn_again_alike(bridge):
    """What a resnet drops when it runs again is what it dropped at first, and not the next time."""
    block = blocks.MidBlock3D(
        8, temb_channels=0, dropout=0.5, num_layers=1, resnet_groups=4, **bridge.build()
    )
    x = jnp.asarray(bridge.normal(1, 2, 4, 4, 8))

    @nnx.jit
    def gradient(block, x):
        return nnx.value_and_grad(lambda block, x: jnp.sum(block(x)[0] ** 2), argnums=1)(block, x)

    results = {}
    for enabled in (False, True):
        block.gradient_checkpointing = enabled
        block.resnets[0].dropout.rngs.count[...] = jnp.uint32(0)
        results[enabled] = gradient(block, x), gradient(block, x)
    for plain, other in zip(*results.values(), strict=True):
        np.testing.assert_allclose(other[0], plain[0], rtol=1e-5)
        np.testing.assert_allclose(other[1], plain[1], rtol=1e-4, atol=1e-4)
    first, second = results[True]
    assert abs(first[0] - second[0]) > 1e-2 * abs(first[0])
