"""Settings and small models that all tests share."""

import jax
import pytest

# A port that broadcasts by accident is wrong at the first other batch size.
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def small_torch():
    """diffusers' model in the small configuration of the ladder."""
    from jaxvae.pairing import make_torch

    return make_torch(None, "small", 0)


@pytest.fixture(scope="session")
def small_nnx(small_torch):
    """The port with the same weights."""
    from jaxvae.pairing import make_nnx

    return make_nnx(None, "small", small_torch)
