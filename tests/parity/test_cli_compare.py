"""`parity compare`: what it takes and refuses, through the entry point."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.cli.compare import arguments, find_function
from parity.core.exceptions import InputError
from tests.commands import COMMAND, parity, refused
from tests.docs.documents import blocks, difference

EXAMPLES = Path(__file__).parents[2] / "examples"

SOURCE = """
import numpy as np
import torch
from flax import nnx

import parity

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


class Same(torch.nn.Module):
    def forward(self, x):
        return x


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Same()

    def forward(self, x):
        return self.inner(x)


class Port(nnx.Module):
    def __call__(self, x):
        return x


class OuterPort(nnx.Module):
    def __init__(self):
        self.inner = Port()

    def __call__(self, x):
        return self.inner(x) + 1


def pair():
    return Outer(), OuterPort(), (X,)


def two():
    return Outer(), OuterPort()


def bare():
    return {"torch_module": Outer(), "nnx_module": OuterPort(), "torch_args": X}


def strange():
    return {"torch_module": Outer(), "nnx_module": OuterPort(), "torch_args": (X,), "args": (X,)}


def seeded():
    return {"torch_module": Outer(), "nnx_module": OuterPort(), "torch_args": (X,), "seed": 5}


def short():
    return {"torch_module": Outer(), "nnx_module": OuterPort()}


def needing(size):
    return Outer(), OuterPort(), (X,)


LADDER = parity.Pair("ladder", None, None, None, ())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "mine.py").write_text(SOURCE)
    (folder / "broken.py").write_text("def make():\n    raise RuntimeError('no checkpoint')\n")
    (folder / "lacking.py").write_text("import gone_too\n")
    return folder


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "Missing argument"),
        (["mine"], "'mine': expected module:attribute"),
        (["json:gone"], "'json:gone' cannot be loaded"),
        (["mine:pare"], "has no attribute 'pare'; did you mean 'pair'?"),
        (["mine.py:pair"], "'mine' is not a package; write mine:pair"),
        (["json:loads", "--depth", "-1"], "--depth"),
        (["gone.module:f"], "'gone.module:f' cannot be loaded: No module named 'gone'"),
        (["json:2"], "'json:2': expected module:attribute, as in package.module:function"),
        (["math:pi"], "'math:pi' is a float, expected a function that returns"),
        (["json:loads", "--device", "cpu:7"], "--device 'cpu:7': JAX has cpu:0"),
        (["json:loads", "--device", "cpu:-1"], "--device 'cpu:-1': JAX has cpu:0"),
    ],
)
def test_wrong_usage(words, part, home):
    refused(parity("compare", *words, cwd=home), part)


@pytest.fixture
def beside(home, monkeypatch):
    """What `load` adds to the places where modules are looked for is taken back."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("two", r"mine:two returns a tuple of 2, expected \(torch_module, nnx_module, args\)"),
        ("strange", "parity.compare: got an unexpected keyword argument 'args'"),
        ("short", "parity.compare: missing a required argument: 'torch_args'"),
        ("needing", "it is called without arguments"),
        ("LADDER", "has a ladder: `parity run mine:LADDER`"),
    ],
)
def test_what_a_function_may_not_return(name, text, beside):
    with pytest.raises(InputError, match=text):
        arguments(f"mine:{name}", find_function(f"mine:{name}"))


@pytest.mark.parametrize("name", ["pair", "bare"])
def test_what_it_may(name, beside):
    made = arguments(f"mine:{name}", find_function(f"mine:{name}"))
    assert sorted(made) == ["nnx_module", "torch_args", "torch_module"]


@pytest.mark.parametrize(("words", "seed"), [([], 5), (["--seed", "0"], 0)])
def test_the_seed_is_the_functions_unless_one_is_given(words, seed, beside, tmp_path):
    words = ["compare", "mine:seeded", *words, "--only", "inner", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["environment"]["seed"] == seed


@pytest.mark.slow
def test_a_function_that_fails_shows_why(home):
    done = parity("compare", "broken:make", cwd=home)
    assert done.returncode == 2
    assert "no checkpoint" in done.stderr
    assert "nothing was compared" in done.stderr


@pytest.mark.slow
def test_the_options_on_another_device(home):
    """What is chosen is right; the root, which is not, is not looked into."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = parity(
        "compare", "mine:pair", "--device", "cpu:1", "--seed", 3, "--only", "inner", "--depth", 0,
        "--eager", "--repro", "shown", "--quiet", cwd=home, XLA_FLAGS=flags,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    note, verdict = done.stdout.splitlines()
    assert note.startswith("note: a part only: 1 of 2 modules were chosen ('inner')")
    assert verdict == "Outer against OuterPort: WARN"
    report = json.loads((home / "reports" / "mine.pair-part" / "report.json").read_text())
    assert report["environment"]["seed"] == 3
    assert report["environment"]["jax_device"].endswith("1")
    assert (report["facts"]["only"], report["facts"]["depth"]) == (["inner"], 0)
    assert report["verdict"] == "WARN"
    assert "the report has no fault" in done.stderr


def test_what_a_module_does_not_find_itself_shows_where(beside):
    with pytest.raises(ModuleNotFoundError, match="gone_too"):
        find_function("lacking:make")


def documented():
    """The commands of the walk-through, in order."""
    text = (EXAMPLES / "README.md").read_text()
    return [line.split() for line in text.splitlines() if line.startswith(".venv/bin/")]


@pytest.mark.slow
def test_the_walk_through(tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    found = []
    for command, *words in documented():
        program = {"parity": COMMAND, "python": sys.executable}[Path(command).name]
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        found.append((done.returncode, done.stdout, done.stderr))
    codes = [code for code, *_ in found]
    assert codes == [1, 0, 0], found
    broken, shown, corrected = (text for _, text, _ in found)
    place = "blocks.0.attention (TorchAttention), call 0 of __call__, between to_v and the input of"
    assert f"fault: norm_axes\n  where    {place} to_out\n  alike    blocks.1.attention\n" in broken
    assert "  why      softmax over axis 1 explains 100 % of the error\n" in broken
    table = pd.read_csv(
        tmp_path / "reports" / "examples.attention.make_pair" / "layers.csv", keep_default_na=False
    )
    row = table[table.path == "blocks.0.attention"].iloc[0]
    figures = re.match(r"output: max (\S+), MAE (\S+), rel_l2 (\S+);", shown)
    assert float(figures[2]) == pytest.approx(float(row.incl_mae), rel=1e-3)
    assert float(figures[3]) == pytest.approx(float(row.incl_rel_l2), rel=1e-3)
    assert corrected.splitlines()[-3] == "TorchClassifier against Classifier: PASS"
    documents = [one.text for one in blocks("examples/README.md")]
    assert not difference(documents[1], broken)
    assert not difference(documents[3], shown)
