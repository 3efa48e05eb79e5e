"""What a convolution that sees no future frame computes of a frame by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bench.tpu_aot import operations
from jaxvae.models.wan.causal_convolution import CACHE_T, CausalConv3d


@pytest.fixture
def conv():
    build = {"rngs": nnx.Rngs(0), "dtype": jnp.float32, "precision": "highest"}
    return CausalConv3d(32, 32, 3, padding=1, **build)


def test_a_frame_by_itself_meets_one_tap(conv, bridge):
    x = bridge.normal(2, 1, 9, 10, 32)
    zeros = jnp.zeros((2, CACHE_T, 9, 10, 32))

    def products(*given):
        return operations(jax.make_jaxpr(conv)(*given).jaxpr)

    assert 3 * products(x) == products(x, zeros)
    assert bridge.error(conv(x), np.asarray(conv(x, zeros))) < 1e-6
    several = bridge.normal(2, 3, 9, 10, 32)
    assert bridge.error(conv(several), np.asarray(conv(several, zeros))) == 0


def test_gradients_of_the_taps_that_it_does_not_meet_are_zeros(conv, bridge):
    x = bridge.normal(1, 1, 9, 10, 32)
    of_kernel = nnx.grad(lambda conv, *given: jnp.sum(conv(*given) ** 2))
    alone = of_kernel(conv, x)["kernel"][...]
    behind = of_kernel(conv, x, jnp.zeros((1, CACHE_T, 9, 10, 32)))["kernel"][...]
    assert not alone[:2].any()
    assert bridge.error(alone, np.asarray(behind)) < 1e-6
