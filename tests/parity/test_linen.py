"""A port in Flax Linen, wrapped with `nnx.bridge.ToNNX`: its modules have rows like any other."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import parity
from parity.capture.hooks_nnx import STAMP
from parity.capture.nnx import named_tensors, submodules
from tests.nets import torch_of
from tests.ports import nnx_of
from tests.reports import compare


def torch_block():
    return torch_of(
        lambda self, x, scale=1.0: x + self.act(self.fc(self.norm(x))) * scale,
        norm=torch.nn.LayerNorm(6),
        fc=torch.nn.Linear(6, 6),
        act=torch.nn.GELU(),
    )


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch_block(), torch_block()])
        self.bn = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(self.bn(x))


class Act(linen.Module):
    """Without variables."""

    @linen.compact
    def __call__(self, x):
        return linen.gelu(x, approximate=False)


class Block(linen.Module):
    epsilon: float = 1e-5
    residual: float = 1.0

    @linen.compact
    def __call__(self, x, scale=1.0):
        h = linen.LayerNorm(epsilon=self.epsilon, use_fast_variance=False, name="norm")(x)
        h = Act(name="act")(linen.Dense(6, name="fc")(h))
        return self.residual * x + h * scale


class Net(linen.Module):
    epsilon: float = 1e-5
    residual: float = 1.0

    def setup(self):
        self.blocks = [Block(), Block(self.epsilon, self.residual)]
        self.bn = linen.BatchNorm(use_running_average=True)
        self.head = linen.Dense(4)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(self.bn(x))


X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
RENAME = {"blocks.*": "blocks_*"}
NAMES = {"weight": "kernel", "running_mean": "mean", "running_var": "var", "bias": "bias"}


def make(**settings):
    torch.manual_seed(0)
    reference = TorchNet().eval()
    with torch.no_grad():
        for module in reference.modules():
            if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm1d)):
                module.weight.normal_(1.0, 0.3)
                module.bias.normal_(0.0, 0.2)
        reference.bn.running_mean.normal_()
        reference.bn.running_var.uniform_(0.5, 2.0)
    port = nnx.bridge.ToNNX(Net(**settings), rngs=nnx.Rngs(0)).lazy_init(jnp.asarray(X))
    variables = {f"{t.path}.{t.name}": t for t in named_tensors(port)}
    for path, module in reference.named_modules():
        for name, value in (*module.named_parameters(recurse=False),
                            *module.named_buffers(recurse=False)):  # fmt: skip
            ours = "scale" if name == "weight" and value.ndim == 1 else NAMES.get(name)
            full = f"{path.replace('blocks.', 'blocks_')}.{ours}"
            if full in variables:
                held = vars(port)
                for part in full.split("."):
                    held = held[part]
                held[...] = jnp.asarray(value.detach().numpy().T)
    return reference, port


def test_the_modules_inside_are_those_with_variables():
    _, port = make()
    inside = {"blocks_0", "blocks_0.norm", "blocks_0.fc", "bn", "head"}
    assert set(submodules(port)) > inside | {""}
    assert not any("act" in path for path in submodules(port))


@pytest.mark.parametrize("rename", [RENAME, {}])
def test_a_correct_port_passes_module_by_module(rename):
    report = compare(*make(), (X,), rename=rename)
    assert report.verdict == "PASS", report.notes
    coverage = report.coverage
    expected = ["", "blocks.0", "blocks.0.norm", "blocks.0.fc", "blocks.1", "blocks.1.norm",
                "blocks.1.fc", "bn", "head"]  # fmt: skip
    assert list(coverage.matched) == expected
    assert set(coverage.inlined) == {"blocks.0.act", "blocks.1.act"}
    assert coverage.matched_parameters == coverage.parameters == 12
    table = report.table[report.table.path == "blocks.1.fc"].iloc[0]
    assert (table.nnx_path, table.kind) == ("blocks_1.fc", "Linear")
    assert np.isfinite(table.R)


def test_nothing_is_left_behind():
    reference, port = make()
    before = dict(vars(nnx.bridge.ToNNX))
    streams = int(port.to_nnx__rngs.default.count[...])
    compare(reference, port, (X,), rename=RENAME)
    assert dict(vars(nnx.bridge.ToNNX)) == before
    assert not hasattr(port, STAMP)
    assert int(port.to_nnx__rngs.default.count[...]) == streams
    np.testing.assert_array_equal(port(X), port(X))


@pytest.mark.parametrize(
    ("settings", "path", "cause"),
    [({"epsilon": 1e-3}, "blocks.1.norm", "epsilon"), ({"residual": 0.0}, "blocks.1", "glue")],
)
def test_a_mistake_is_named(settings, path, cause):
    report = compare(*make(**settings), (X,), rename=RENAME)
    assert [(fault.path, fault.cause) for fault in report.faults] == [(path, cause)]


def test_a_wrong_weight_is_named():
    reference, port = make()
    port.blocks_1["fc"]["kernel"][...] = port.blocks_0["fc"]["kernel"][...]
    report = compare(reference, port, (X,), rename=RENAME)
    assert [(f.path, f.cause) for f in report.faults] == [("blocks.1.fc", "weights_swapped")]


def around(inner):
    """An NNX port of which a part is still Linen."""
    return nnx_of(lambda self, x: _compiled(self, x), inner=inner)


@nnx.jit
def _compiled(module, x):
    return module.inner(x) * 2


@pytest.mark.parametrize("only", [(), ("inner.blocks.1",)])
def test_inside_an_nnx_module_under_jit(only):
    reference, port = make(residual=0.0)
    pair = torch_of(lambda self, x: self.inner(x) * 2, inner=reference), around(port)
    report = compare(*pair, (X,), rename={"inner.blocks.*": "inner.blocks_*"}, only=only)
    assert [fault.path for fault in report.faults] == ["inner.blocks.1"]
    inside = report.table[report.table.path.str.startswith("inner.blocks.1.")]
    assert list(inside.verdict) == ["PASS", "PASS"]
    assert ("inner.head" in set(report.table.path)) is not bool(only)


def test_there_is_no_bundle_of_one(tmp_path):
    report = compare(*make(epsilon=1e-3), (X,), rename=RENAME, keep_repro=True)
    with pytest.raises(parity.InputError, match="it is a module of Linen"):
        report.write_repro(tmp_path, make="a:b")
