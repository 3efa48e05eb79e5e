"""The repro of a fault: arrays, and a script that shows it.

The walk-through of the examples runs one in a process of its own: `test_cli_compare.py`.
"""

import re
import runpy
import sys
from dataclasses import replace
from importlib import import_module

import jax
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flax import nnx
from safetensors.numpy import load_file

import parity
from parity import InputError
from parity.cli import cli
from parity.core.repro import Repro
from parity.core.verdicts import Fault
from parity.report.repro import write_repro
from parity.run.repro import Unshowable, _access, made_by_pair
from tests.ports import nnx_of
from tests.reports import compare

SOURCE = """
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx


class TorchMix(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, pair, scale=1.0):
        a, b = pair["a"], pair["b"][0]
        return {"sum": self.linear(a) * scale + b, "plain": a, 0: {"a.b": (a,)}}


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mixes = torch.nn.ModuleList([TorchMix(), TorchMix()])

    def forward(self, x):
        return self.mixes[1]({"a": x, "b": (x,)}, scale=0.5)["sum"]


class Mix(nnx.Module):
    def __init__(self, reference):
        self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.linear.kernel[...] = jnp.asarray(reference.linear.weight.detach().numpy().T)
        self.linear.bias[...] = jnp.asarray(reference.linear.bias.detach().numpy())

    def __call__(self, pair, scale=1.0):
        a, b = pair["a"], pair["b"][0]
        return {"sum": self.linear(a) * scale + 1.1 * b, "plain": a, 0: {"a.b": (a,)}}


class Net(nnx.Module):
    def __init__(self, reference):
        self.mixes = nnx.List([Mix(mix) for mix in reference.mixes])

    def __call__(self, x):
        return self.mixes[1]({"a": x, "b": (x,)}, scale=0.5)["sum"]


def make_pair():
    reference = TorchNet()
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return {"torch_module": reference, "nnx_module": Net(reference), "torch_args": (x,)}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with that module, where a script would be run."""
    (tmp_path / "mixing.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mixing", None)


@pytest.fixture
def shown(home, capsys):
    """A report with its call, what was written, and what the script printed."""
    torch.manual_seed(3)
    report = compare(**import_module("mixing").make_pair(), seed=3, keep_repro=True)
    torch.manual_seed(4)  # the script starts from its own seed
    written = report.write_repro(home / "out", make="mixing:make_pair")
    runpy.run_path(str(home / "out" / "repro.py"))
    return report, written, capsys.readouterr().out


def test_the_script_shows_the_deviation_of_the_report(shown):
    report, _, printed = shown
    fault = report.first_fault
    assert (fault.path, fault.leaf) == ("mixes.1", "sum")
    row = report.table[(report.table.path == "mixes.1") & (report.table.leaf == "sum")].iloc[0]
    lines = dict(line.split(": ", 1) for line in printed.splitlines())
    assert set(lines) == {"output.sum", "output.plain", "output.0.a.b.0"}
    found = re.match(r"max (\S+), MAE (\S+), rel_l2 (\S+);", lines["output.sum"])
    assert float(found[2]) == pytest.approx(row.incl_mae, rel=1e-3)
    assert float(found[3]) == pytest.approx(row.incl_rel_l2, rel=1e-3)
    at = tuple(map(int, row.worst_index.split(",")))
    assert f"the worst at {at}" in lines["output.sum"]
    assert "max 0.000e+00" in lines["output.plain"]


def test_the_arrays(shown):
    _, written, _ = shown
    files = {path.name: path for path in written}
    assert set(files) == {"inputs.safetensors", "expected.safetensors", "weights.safetensors",
                          "repro.py"}  # fmt: skip
    assert set(load_file(files["inputs.safetensors"])) == {"pair.a", "pair.b.0"}
    assert load_file(files["weights.safetensors"])["linear.weight"].shape == (4, 4)
    script = files["repro.py"].read_text()
    assert "port.mixes[1](" in script
    assert ", scale=0.5)" in script
    assert "reference: it needs torch" in script


def test_the_script_makes_the_port_as_the_command_did(home):
    """Whatever seed the function asks the comparison to have, and whatever mapping it returns."""
    more = """

def make_other():
    from types import MappingProxyType

    return MappingProxyType({**make_pair(), "seed": 5, "check_compiled": False})
"""
    (home / "mixing.py").write_text(SOURCE + more)
    words = ["compare", "mixing:make_other", "--repro", "out", "--out", "report", "--quiet"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1, done.output
    made = runpy.run_path(str(home / "out" / "repro.py"))
    kept = load_file(home / "out" / "weights.safetensors")["linear.weight"]
    np.testing.assert_array_equal(np.asarray(made["port"].mixes[1].linear.kernel[...]).T, kept)


def scaled(factor):
    return nnx_of(lambda self, x, rngs=None: x * self.factor, factor=factor)


def doubled(module, x):
    return 2 * module(x)


class Same(torch.nn.Module):
    def forward(self, x, rngs=None):
        return x


X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def test_a_right_port_has_nothing_to_show(tmp_path):
    report = compare(Same(), scaled(1.0), (X,), keep_repro=True)
    with pytest.raises(parity.InputError, match="no call to write: the report has no fault"):
        report.write_repro(tmp_path, make="a:b")
    report = compare(Same(), scaled(2.0), (X,))
    with pytest.raises(parity.InputError, match="compare with keep_repro=True"):
        report.write_repro(tmp_path, make="a:b")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_down_is_said(tmp_path):
    report = compare(Same(), scaled(2.0), (X,), keep_repro=True)
    with pytest.raises(parity.InputError, match="expected module:attribute"):
        report.write_repro(tmp_path, make="somewhere")
    inline = lambda module, x: module(x)  # noqa: E731
    report = compare(Same(), scaled(2.0), (X,), nnx_method=inline, keep_repro=True)
    with pytest.raises(parity.InputError, match="no function that can be imported"):
        report.write_repro(tmp_path, make="a:b")
    streams = {"rngs": nnx.Rngs(0)}
    report = compare(Same(), scaled(2.0), (X,), nnx_kwargs=streams, keep_repro=True)
    with pytest.raises(parity.InputError, match="it takes a Rngs"):
        report.write_repro(tmp_path, make="a:b")


def test_a_function_that_was_called_is_imported(tmp_path):
    report = compare(Same(), scaled(1.0), (X,), nnx_method=doubled, keep_repro=True)
    report.write_repro(tmp_path, make="a:b")
    script = (tmp_path / "repro.py").read_text()
    assert f"from {__name__} import doubled as method" in script
    assert 'output = method(port, given["x"])' in script.replace("'", '"')


def test_how_a_pair_makes_its_port():
    assert made_by_pair({"size": (8, 8), "config": None}, 7) == (
        "options = {'size': (8, 8), 'config': None}\n"
        "reference = make.make_torch(options, 7)\n"
        "port = make.make_nnx(options, reference)"
    )
    with pytest.raises(Unshowable, match="which a script cannot spell"):
        made_by_pair({"when": object()}, 7)


def test_braces_in_what_was_asked_for_are_text(tmp_path):
    array = {"x": np.ones(2, np.float32)}
    fault = Fault("a", 0, "", "forward", "Conv", "")
    making = made_by_pair({"config": "{name}.json"}, 0)
    made = Repro(fault, "port(given['x'])", "", array, array, making=making)
    write_repro(made, tmp_path, "mine:PAIR")
    assert "options = {'config': '{name}.json'}" in (tmp_path / "repro.py").read_text()


def test_arrays_that_no_file_holds_are_said(tmp_path):
    array = {"x": np.ones(2, np.longdouble)}
    bare = Repro(Fault("a", 0, "", "forward", "Conv", ""), "port(given['x'])", "", array, array)
    with pytest.raises(InputError, match="repro: `a`, call 0 has arrays that no file can hold"):
        write_repro(bare, tmp_path, "mine:PAIR")


def test_a_name_that_no_file_holds_is_said(tmp_path):
    array = {"\ud800": np.ones(2, np.float32)}
    bare = Repro(Fault("a", 0, "", "forward", "Conv", ""), "port()", "", array, array)
    with pytest.raises(InputError, match="repro: `a`, call 0 has arrays that no file can hold"):
        write_repro(bare, tmp_path, "mine:PAIR")


def test_the_script_configures_jax_as_it_was(tmp_path):
    device = jax.devices("cpu")[0]
    with jax.default_device(device), jax.default_matmul_precision("bfloat16"), jax.enable_x64(True):
        report = compare(Same(), scaled(2.0), (X,), keep_repro=True)
    report.write_repro(tmp_path, make="a:b")
    script = (tmp_path / "repro.py").read_text().splitlines()
    lines = [line for line in script if line.startswith("jax.config")]
    assert lines == [
        'jax.config.update("jax_enable_x64", True)',
        "jax.config.update(\"jax_default_matmul_precision\", 'bfloat16')",
        "jax.config.update(\"jax_default_device\", jax.devices('cpu')[0])",
    ]


@pytest.mark.parametrize("path", ["layers.first.one", "layers.7", "gone"])
def test_a_path_that_no_expression_leads_to(path):
    root = nnx.Module()
    root.layers = nnx.Dict({"first": nnx.Linear(1, 1, rngs=nnx.Rngs(0))})
    with pytest.raises(Unshowable, match="no expression leads from `port"):
        _access(root, path)


BREAKING = [
    'x"""\nraise SystemExit("ran")\n"""', "\\user", "a\0b", "'\n", "\u202e", "class", "ﬁ",
    "a=1); raise SystemExit('ran')#", "{name}", "{{ 7 }}", "\\N{BULLET}",
]  # fmt: skip


@pytest.mark.parametrize("name", BREAKING, ids=range(len(BREAKING)))
def test_a_name_is_never_code(name, tmp_path):
    """Of a module, of a leaf, of an argument, of a case, of an option, and of the folder."""

    class Reference(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, Same())

        def forward(self, x, **more):
            return {name: self._modules[name](x) + more[name]}

    def ported(self, x, **more):
        return {name: getattr(self, name)(x) + 2 * more[name]}

    port = nnx_of(ported, **{name: nnx_of(lambda self, x: x)})
    report = compare(Reference(), port, (X,), torch_kwargs={name: X}, keep_repro=True, seed=1)
    making = made_by_pair({name: name, "texts": [name]}, 0)
    report = replace(report, repro=replace(report.repro, making=making))
    folder = tmp_path / "".join(c if c.isprintable() and c != "/" else "_" for c in name)
    report.write_repro(folder, make="tests.parity.test_repro:MAKER")
    MAKER.port = port
    made = runpy.run_path(str(folder / "repro.py"))
    assert made["options"] == {name: name, "texts": [name]}
    assert set(made["output"]) == {name}


class Maker:
    port = None

    def make_torch(self, options, seed):
        return None

    def make_nnx(self, options, reference):
        return self.port


MAKER = Maker()
