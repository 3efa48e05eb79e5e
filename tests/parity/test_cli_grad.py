"""`parity compare --gradients`, through the entry point."""

import json

import pandas as pd
import pytest

from tests.commands import parity

SOURCE = """
import jax
import numpy as np
import torch
from flax import nnx

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Tanh(), torch.nn.Tanh()

    def forward(self, x):
        return self.second(self.first(x))


class Tanh(nnx.Module):
    def __call__(self, input):
        return jax.numpy.tanh(input)


class Port(nnx.Module):
    def __init__(self, between):
        self.first, self.second, self.between = Tanh(), Tanh(), between

    def __call__(self, x):
        return self.second(self.between(self.first(x)))


def right():
    return Torch(), Port(lambda y: y), (X,)


def wrong():
    return Torch(), Port(jax.lax.stop_gradient), (X,)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grad")
    (folder / "mine.py").write_text(SOURCE)
    return folder


def test_a_gradient_that_is_stopped(home):
    done = parity("compare", "mine:wrong", "--gradients", cwd=home)
    assert done.returncode == 1, done.stderr
    assert "where    <root> (Torch), call 0 of __call__/grad" in done.stdout
    assert "zero everywhere" in done.stdout
    table = pd.read_csv(home / "reports" / "mine.wrong" / "layers.csv", keep_default_na=False)
    gradients = table[table["case"] == "__call__/grad"]
    assert gradients.leaf.tolist() == ["grad(input)", "grad(input)", "grad(x)"]
    assert set(table[table["case"] == "__call__"].verdict) == {"PASS"}


@pytest.mark.slow
def test_one_that_is_right(home):
    done = parity("compare", "mine:right", "--gradients", "--json", "--out", "there", cwd=home)
    assert done.returncode == 0, done.stderr
    kinds = [line["kind"] for line in json.loads(done.stdout)["kinds"]]
    assert kinds == ["Tanh", "Torch", "Tanh, gradients", "Torch, gradients"]


def test_it_is_of_the_whole(home):
    done = parity("compare", "mine:right", "--gradients", "--only", "first", cwd=home)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "parity: --gradients is of the whole model: use --depth, not --only, to see less of it"
    ]
