"""No hidden state: the model is a function, alone and under every transformation."""

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

LIMIT = 5e-6  # two programs of the same computation

METHODS = ["encode", pytest.param("decode", marks=pytest.mark.slow)]


def call(vae, method, x):
    return vae.encode(x).parameters if method == "encode" else vae.decode(x)


def inputs(bridge, objective, method, batch=1, seed=0):
    shape = objective.video if method == "encode" else objective.latent
    return bridge.normal(batch, *shape[1:], seed=seed)


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_nothing_of_one_call_stays_for_the_next(bridge, objective, method):
    """A, B, A of three chunks; what the model holds is the same afterwards, value and object."""
    vae = objective.ours
    a, b = (inputs(bridge, objective, method, seed=seed) for seed in (0, 1))
    graph, state = nnx.split(vae)
    first, between, again = (call(vae, method, x) for x in (a, b, a))
    assert np.array_equal(first, again)
    assert bridge.error(between, first) > 1e-2
    assert call(vae, method, a[:, :-4]).shape[1] < first.shape[1]
    with pytest.raises(ValueError, match="expected"):
        call(vae, method, a[..., :1])
    assert np.array_equal(call(vae, method, a), first)
    after_graph, after = nnx.split(vae)
    assert after_graph == graph
    assert all(x is y for x, y in zip(*map(jax.tree.leaves, (state, after)), strict=True))


def over_batch(vae, method, x):
    return jax.vmap(lambda one: call(vae, method, one[None])[0])(x)


def scanned(vae, method, x):
    return lax.scan(lambda n, one: (n + 1, call(vae, method, one[None])[0]), 0, x)[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transformed", [over_batch, scanned])
def test_over_a_batch(bridge, objective, transformed, method):
    x = inputs(bridge, objective, method, batch=2)
    run = jax.jit(transformed, static_argnums=1)
    expected = call(objective.ours, method, x)
    assert bridge.error(run(objective.ours, method, x), expected) < LIMIT


@pytest.mark.parametrize("method", METHODS)
def test_nnx_jit(bridge, objective, method):
    x = inputs(bridge, objective, method)
    run = nnx.jit(call, static_argnums=1)
    assert bridge.error(run(objective.ours, method, x), call(objective.ours, method, x)) < LIMIT


@pytest.mark.parametrize("method", METHODS)
def test_exported_for_any_batch_and_read_back(bridge, objective, method):
    vae = objective.ours
    graph, state = nnx.split(vae)
    leaves, tree = jax.tree.flatten(state)

    def run(leaves, x):
        return call(nnx.merge(graph, jax.tree.unflatten(tree, leaves)), method, x)

    x = inputs(bridge, objective, method, batch=2)
    shape = jax.export.symbolic_shape("b, " + ", ".join(map(str, x.shape[1:])))
    exported = jax.export.export(jax.jit(run))(leaves, jax.ShapeDtypeStruct(shape, x.dtype))
    read = jax.export.deserialize(exported.serialize())
    again = jax.jit(read.call)(leaves, x)
    assert bridge.error(again, call(vae, method, x)) < LIMIT


def test_a_cache_may_be_given_up(bridge, objective):
    """A donated cache is written over, and the next one is the same as without."""

    def run(encoder, x, cache):
        return encoder(x, conv_cache=cache)

    first, second = (bridge.normal(1, 4, 8, 12, 3, seed=seed) for seed in (0, 1))
    encoder = objective.ours.encoder
    start = jax.jit(run)
    kept = start(encoder, first, None)[1]
    expected = start(encoder, second, kept)
    donating = jax.jit(run, donate_argnums=2)
    given = jax.tree.map(jnp.copy, kept)
    output = donating(encoder, second, given)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(kept))
    chex.assert_trees_all_equal(output, expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_tracer_gets_out(bridge, objective, checkpointing):
    graph, state = nnx.split(objective.ours)
    vae = nnx.merge(graph, state)
    if checkpointing:
        vae.enable_gradient_checkpointing()
    arguments = objective.inputs(loss=1)
    with jax.checking_leaks():
        jax.eval_shape(jax.grad(objective.value), vae, *arguments)
        jax.eval_shape(jax.vmap(lambda z: vae.decode(z)), jnp.zeros((2, *objective.latent)))
    leaves = jax.tree.leaves(vae)
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
