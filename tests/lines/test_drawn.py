import numpy as np
import pytest

from parity.lines.whole_programs import align
from tests.lines.drawn import draw, programs


def shows(reference, port, x):
    """True if a mistake changes the output."""
    import jax.numpy as jnp
    import torch

    wanted = reference(torch.from_numpy(x)).detach().numpy()
    return not np.allclose(wanted, port(jnp.asarray(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_the_wrong_line_of_a_drawn_program_is_the_first(seed, tmp_path):
    drawn = draw(seed, mistake=True)
    reference, port, x = programs(drawn, tmp_path)
    found = align(reference, port, (x,), (x,)).partings
    if not shows(reference, port, x):
        assert found == ()
        return
    assert drawn.wrong in [line.line for line in found[0].port[:2]]
    assert len(found) == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_drawn_program_agrees_with_itself(seed, tmp_path):
    reference, port, x = programs(draw(seed, mistake=False), tmp_path)
    assert align(reference, port, (x,), (x,)).partings == ()
