"""What the zoo does not reach: operations written out, and what nothing explains."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import parity
from parity.diagnose import trial

X = np.random.default_rng(3).standard_normal((2, 6, 7, 5)).astype(np.float32)
VIDEO = np.random.default_rng(4).standard_normal((1, 4, 5, 6, 7)).astype(np.float32)


def compare(theirs, ours, x=X):
    class Torch(torch.nn.Module):
        def forward(self, x):
            return theirs(x)

    class Port(nnx.Module):
        def __call__(self, x):
            return ours(x)

    return parity.compare(Torch(), Port(), (x,), jitted=False).first_fault


def test_an_epsilon_under_a_root():
    def port(eps):
        return lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)

    def reference(x):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)

    small = X * 1e-2
    assert compare(reference, port(1e-6), small) is None
    fault = compare(reference, port(1e-5), small)
    assert fault.cause == "epsilon"
    assert "1e-05 instead of 1e-06 added" in fault.evidence


def test_an_activation_in_place():
    fault = compare(
        lambda x: torch.nn.functional.relu(x.clone(), inplace=True),
        lambda x: jax.nn.leaky_relu(x, 0.01),
    )
    assert fault.cause == "activation"


def test_frames_put_in_front():
    def reference(x):
        return torch.cat([x[:, :, :1], x[:, :, :1], x], 2)

    def zeros(x):
        return jnp.concatenate([jnp.zeros_like(x[:, :2]), x], 1)

    def behind(x):
        return jnp.concatenate([x, x[:, :1], x[:, :1]], 1)

    assert compare(reference, zeros, VIDEO).cause == "cache"
    assert compare(reference, behind, VIDEO).cause == "causal_side"


def test_what_nothing_explains_is_unknown():
    fault = compare(torch.sin, lambda x: jnp.cos(3 * x))
    assert fault.cause == "unknown"
    assert "of the reference explains it" in fault.evidence


def test_shapes_types_and_infinities():
    assert compare(lambda x: x * 2, lambda x: (x * 2)[:, :3]).cause == "shape"
    assert compare(lambda x: x * 2, lambda x: jnp.round(x * 2).astype(int)).cause == "dtype"
    fault = compare(lambda x: x * 2, lambda x: jnp.where(x > 1, jnp.inf, x * 2))
    assert fault.cause == "nonfinite"


def test_a_broken_probe_is_said_and_does_no_harm():
    def broken(operations):
        raise KeyError("lost")
        yield

    trial.PROBES.insert(0, broken)
    try:
        fault = compare(torch.sin, lambda x: jnp.cos(3 * x))
    finally:
        trial.PROBES.remove(broken)
    assert "broken probes: broken (KeyError('lost'))" in fault.evidence
