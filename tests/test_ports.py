"""Right ports of real references, in the styles that people use, without any configuration."""

import jax
import numpy as np
import pytest

pytest.importorskip("transformers")

from tests.ports.both import NAMES, outputs


@pytest.fixture(autouse=True)
def _as_people_write():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_port_is_right(name):
    for reference, port in outputs(name):
        np.testing.assert_allclose(port, reference, rtol=1e-4, atol=1e-5)
