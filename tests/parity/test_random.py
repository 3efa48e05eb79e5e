"""References that compute something else each time, whatever they draw from, and however little."""

import itertools
import random
import time

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from parity.pipeline import run_pair
from tests.nets import port_of, torch_of
from tests.ports import nnx_of

X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
OWN = torch.Generator().manual_seed(0)
NUMPYS_OWN = np.random.default_rng(1)
COUNT = [0]


def like(x, draw):
    return torch.from_numpy(draw(x.shape).astype(np.float32))


NOISES = {
    "torch": lambda self, x: x + 1e-3 * torch.randn_like(x),
    "a generator of its own": lambda self, x: x + 1e-3 * torch.randn(x.shape, generator=self.own),
    "one of the process": lambda self, x: x + 1e-3 * torch.randn(x.shape, generator=OWN),
    "numpy": lambda self, x: x + 1e-3 * like(x, np.random.standard_normal),
    "a generator of numpy": lambda self, x: x + 1e-3 * like(x, NUMPYS_OWN.standard_normal),
    "random": lambda self, x: x * (1 + 1e-3 * random.random()),
    "time": lambda self, x: x + 1e-9 * (time.monotonic_ns() % 10**9),
}


def around(noise, port_noise=lambda self, x: x + 0):
    noisy = torch_of(noise, own=torch.Generator().manual_seed(3))
    reference = torch_of(
        lambda self, x: self.out(self.noisy(x)), noisy=noisy, out=torch.nn.Linear(6, 6)
    )
    return reference, port_of(
        reference, lambda self, x: self.out(self.noisy(x)), noisy=nnx_of(port_noise)
    )


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_reference_that_is_another_each_time_is_unknown(noise):
    random.seed(0)  # two numbers that it draws may be as good as equal
    report = parity.compare(*around(noise), (X,))
    assert report.verdict == "UNKNOWN"
    (row,) = [row for row in report.rows if row.verdict == "UNKNOWN"]
    assert row.path == "noisy"
    assert "noisy of the reference computes something else each time" in row.reason
    assert report.faults == ()


def test_noise_hides_no_factor():
    report = parity.compare(*around(NOISES["torch"], lambda self, x: x * 1.0005), (X,))
    assert report.verdict == "UNKNOWN"


def test_a_layer_that_the_port_lacks_is_named():
    parts = {"fc": torch.nn.Linear(6, 6), "drop": torch.nn.Dropout(0.01)}
    reference = torch_of(lambda self, x: self.drop(self.fc(x)), **parts).train()
    report = parity.compare(
        reference, port_of(reference, lambda self, x: self.fc(x), drop=None), (X,)
    )
    assert report.verdict == "UNKNOWN"
    assert "drop of the reference computes something else" in report.rows[-1].reason


def test_numbers_that_are_drawn_and_not_used_are_none():
    assert (
        parity.compare(*around(lambda self, x: (torch.rand(3), x + 0)[1]), (X,)).verdict == "PASS"
    )


def test_what_is_counted_in_a_list_of_the_process_begins_anew():
    def counted(self, x):
        COUNT[0] += 1
        return x * COUNT[0]

    assert parity.compare(*around(counted), (X,)).verdict == "PASS"
    assert COUNT == [0]


def states():
    numpys = np.random.get_state()[1]  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpys.tolist(), random.getstate()


def test_no_stream_is_moved():
    nets = [around(NOISES[name]) for name in ("torch", "numpy", "random")]
    before = states()
    for reference, port in nets:
        parity.compare(reference, port, (X,))
    assert states() == before


@pytest.mark.parametrize("floor", [False, True])
def test_a_reference_that_raises_when_it_is_run_again_is_not_known(floor):
    """It says what was raised, also where no float64 run was needed to decide."""
    count = itertools.count(1)

    def once(self, x):
        if next(count) > 1:
            raise KeyError("used up")
        return torch.sin(x)

    pair = parity.Pair(
        "once",
        lambda options, seed: torch_of(once),
        lambda options, reference: nnx_of(lambda self, x: jnp.sin(x)),
        lambda reference, options, seed: [parity.Case("x", (X,), floor=floor)],
    )
    report = run_pair(pair)
    assert report.verdict == "UNKNOWN"
    assert "KeyError: 'used up'" in report.rows[-1].reason
