"""The table of convolutions in docs/performance.md: its arithmetic, its errors measured anew."""

import ast

import pytest

from tests.docs.sources import formulation, formulations
from tools.measure_convolutions import CHANNELS_FIRST, FORMULATIONS, LARGE, SHAPES, rows

TABLE = list(formulations())


def test_every_formulation_is_there():
    wanted = {
        (str(shape), name) for shape in (*SHAPES, LARGE) for name in (*FORMULATIONS, "PyTorch")
    }
    assert {(shape, name) for shape, name, _ in TABLE} == wanted


def test_speeds_follow_from_times():
    """Milliseconds are rounded to whole ones: speeds are right to half of one, and to their own."""
    for shape, _, measured in TABLE:
        frames, height, width, channels = ast.literal_eval(shape)
        operations = 2 * 27 * frames * height * width * channels**2 / 1e6
        for ms, speed in zip(measured[::3], measured[1::3], strict=True):
            assert operations / (ms + 0.5) - 0.5 <= speed <= operations / (ms - 0.5) + 0.5


def test_what_is_said_of_channels_last():
    """As fast as channels first to 5 %, but for the largest shape."""
    for shape in SHAPES:
        last, first = (formulation(str(shape), name)[-3] for name in ("3-D", CHANNELS_FIRST))
        assert abs(last / first - 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_are_those_of_the_table(shape):
    check_errors(shape)


def test_errors_of_the_smallest_shape():
    """In the quick suite."""
    check_errors(SHAPES[-1])


def check_errors(shape):
    """Between those of the two processors, or a third more or less."""
    for name, _, error in rows(shape, 1):
        shown = formulation(str(shape), name)[2::3]
        assert min(shown) / 1.34 < error < 1.34 * max(shown), name
