import json
import sys

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.core.exceptions import InputError

SOURCE = """
import jax
import jax.numpy as jnp
import numpy as np
import torch

X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)


class Reference(torch.nn.Module):
    def forward(self, x):
        x = torch.tanh(x)
        x = x - x.mean((2, 3), keepdim=True)
        return x.softmax(1)


def right(x):
    x = jnp.tanh(x)
    x = x - x.mean((1, 2), keepdims=True)
    return jax.nn.softmax(x, -1)


def wrong(x):
    x = jnp.tanh(x)
    x = x - x.mean((1, 2), keepdims=True)
    return jax.nn.softmax(x, 1)


def fine():
    return Reference(), right, (X,)


def bad():
    return Reference(), wrong, (X,)


def given():
    return Reference(), right, (X,), (X.transpose(0, 2, 3, 1),)


def more():
    return Reference(), lambda x: (x, x), (X,)


def less():
    return Reference(), right
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    sys.modules.pop("two_programs", None)
    (tmp_path / "two_programs.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def lines(*words):
    return CliRunner().invoke(cli, ["lines", *words], catch_exceptions=True)


@pytest.mark.parametrize("name", ["fine", "given"])
def test_programs_that_agree(folder, name):
    done = lines(f"two_programs:{name}")
    assert done.exit_code == 0, done.output
    assert done.output.split("\n")[1].split() == [
        "...",
        "3",
        "lines",
        "agree",
        "...",
        "3",
        "lines",
        "agree",
    ]


def test_programs_that_part(folder):
    done = lines("two_programs:bad")
    assert done.exit_code == 1, done.output
    texts = done.output.split("\n")
    assert texts[1].split() == ["...", "2", "lines", "agree", "...", "2", "lines", "agree"]
    assert "> two_programs.py:26 return jax.nn.softmax" in texts[2]
    assert "> two_programs.py:14 return x.softmax(1)" in texts[2]
    assert "parting 1 of 1" in texts


def test_as_json(folder):
    done = lines("two_programs:bad", "--json")
    made = json.loads(done.output)
    assert [step["state"] for step in made["port"]] == ["agrees", "agrees", "parts"]
    assert made["partings"][0]["reference"][0]["line"] == 14


@pytest.mark.parametrize(
    ("name", "text"), [("more", "returns 2 arrays"), ("less", "expected (torch_module, function")]
)
def test_what_is_refused(folder, name, text):
    done = lines(f"two_programs:{name}")
    assert isinstance(done.exception, InputError)
    assert text in str(done.exception)
