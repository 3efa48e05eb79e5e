"""Attention of positions against PyTorch's, whole and in bands of queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaxvae.layers import attention

SHAPE = (2, 21, 3, 8)


def run(query, key, value):
    return attention.attend(query, key, value, lax.Precision.HIGHEST)


def theirs(*arrays):
    heads = [array.transpose(1, 2) for array in arrays]
    return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)


@pytest.mark.parametrize("banded", [False, True])
def test_outputs_and_gradients(bridge, monkeypatch, banded):
    """A band has the scores of five queries. Its shape is another: programs are kept."""
    positions = 23 if banded else 21
    if banded:
        monkeypatch.setattr(attention, "BLOCK", 5 * 2 * 3 * positions * 4)
    arrays = [bridge.normal(2, positions, 3, 8, seed=seed) for seed in range(4)]
    output, back = jax.vjp(run, *map(jnp.asarray, arrays[:3]))
    program = str(jax.make_jaxpr(run)(*arrays[:3]))
    assert ("scan" in program) == banded
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays[:3]]
    with torch.enable_grad():
        reference = theirs(*tensors)
        reference.backward(torch.from_numpy(arrays[3]))
    assert bridge.error(output, reference.detach().numpy()) < 2e-6
    for found, tensor in zip(back(jnp.asarray(arrays[3])), tensors, strict=True):
        assert bridge.error(found, tensor.grad.numpy()) < 5e-6


def test_bfloat16_is_as_near_to_float64_as_in_pytorch(bridge):
    arrays = [jnp.asarray(bridge.normal(*SHAPE, seed=seed), jnp.bfloat16) for seed in range(3)]
    tensors = [torch.from_numpy(np.asarray(array, np.float32)).bfloat16() for array in arrays]
    exact = theirs(*(tensor.double() for tensor in tensors)).numpy()
    found = np.asarray(run(*arrays), np.float64) - exact
    torchs = theirs(*tensors).double().numpy() - exact
    assert np.sqrt(np.mean(found**2) / np.mean(torchs**2)) < 1.1


def test_large_scores_overflow_nothing(bridge):
    query, key, value = (100 * bridge.normal(*SHAPE, seed=seed) for seed in range(3))
    assert (
        bridge.error(run(query, key, value), theirs(*map(torch.from_numpy, (query, key, value))))
        < 2e-5
    )
