import json
from pathlib import Path

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx

import parity
from parity.lines import jax_operations, lines, torch_operations
from parity.lines.frontier import Pair
from parity.lines.operations import Result
from parity.lines.partings import partings
from parity.report.terminal import as_text
from parity.run import explain
from tests.faultzoo.zoo import CASES
from tests.faultzoo.zoo import nets as zoo_nets
from tests.lines import helper
from tests.lines.attention import marked
from tests.nets import ported, randomise, torch_of
from tests.ports import nnx_of
from tests.reports import SCHEMA, compare

X = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x):
        h = self.up(self.norm(x)) * 0.5
        return x + self.down(F.gelu(h))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))


class PortBlock(nnx.Module):
    def __init__(self, block, wrong):
        self.up, self.down, self.norm = map(ported, (block.up, block.down, block.norm))
        self.wrong = wrong

    def __call__(self, x):
        h = self.up(self.norm(x)) * (0.25 if self.wrong == "factor" else 0.5)  # fault: factor
        exact = self.wrong != "gelu"
        return x + self.down(nnx.gelu(h, approximate=not exact))  # fault: gelu


class PortNet(nnx.Module):
    def __init__(self, net, wrong=""):
        self.first, self.second = PortBlock(net.first, ""), PortBlock(net.second, wrong)
        self.remat = False

    def __call__(self, x):
        if self.remat:
            return nnx.remat(lambda own, x: own.second(own.first(x)))(self, x)
        h = self.first(x)
        return self.second(h)  # fault: call


def port_of(net, wrong):
    port = PortNet(net, wrong)
    if wrong == "epsilon":
        port.second.norm.epsilon = 1e-2
    return port


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return randomise(Net())


@pytest.fixture(scope="module")
def report(net):
    port = port_of(net, "factor")
    before = nnx.to_flat_state(nnx.state(port))
    made = compare(net, port, (X,))
    after = nnx.to_flat_state(nnx.state(port))
    assert all(x[1] is y[1] or x[1][...] is y[1][...] for x, y in zip(before, after, strict=True))
    return made


def test_a_fault_has_the_line_of_each_side(report):
    (fault,) = report.faults
    assert fault.path == "second"
    assert fault.lines.port[0].line in marked(__file__, "factor")
    assert fault.lines.port[0].file == str(Path(__file__).relative_to(Path.cwd()))
    own = fault.lines.reference[0]
    assert own.text.strip() == "h = self.up(self.norm(x)) * 0.5"
    assert Path(__file__).read_text().split("\n")[own.line - 1] == own.text
    assert len(own.before) == len(own.after) == 2


def test_between_modules_too(net):
    (fault,) = compare(net, port_of(net, "gelu"), (X,)).faults
    assert fault.lines.port[0].line in marked(__file__, "gelu")
    assert fault.lines.reference[0].text.strip() == "return x + self.down(F.gelu(h))"


def test_where_a_layer_of_a_library_is_wrong_it_is_the_line_that_calls_it(net):
    (fault,) = compare(net, port_of(net, "epsilon"), (X,)).faults
    assert fault.path == "second.norm"
    assert fault.lines.port[0].line in marked(__file__, "factor")
    assert fault.lines.port[0].operation == "call of LayerNorm"
    assert fault.lines.reference[0].text.strip() == "h = self.up(self.norm(x)) * 0.5"


def test_where_lines_are_few_the_call_is_the_last(report):
    (fault,) = report.faults
    assert fault.lines.port[-1].line in marked(__file__, "call")


def test_calls_under_a_checkpoint_have_their_lines(net):
    port = port_of(net, "factor")
    port.remat = True
    fault = compare(net, port, (X,)).first_fault
    assert fault.path == "second"
    assert fault.lines.port[0].line in marked(__file__, "factor")
    assert fault.lines.reference[0].text.strip() == "h = self.up(self.norm(x)) * 0.5"


def test_a_right_port_costs_nothing(net, monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(lines, "trace_reference", fail)
    monkeypatch.setattr(lines, "trace_port", fail)
    assert compare(net, port_of(net, ""), (X,)).verdict == "PASS"
    (fault,) = compare(net, port_of(net, "factor"), (X,)).faults
    assert fault.lines is None
    assert "where in the source is not known" in fault.evidence


def test_lines_are_in_every_form_of_a_report(report, tmp_path):
    report.write(tmp_path)
    jsonschema.validate(json.loads((tmp_path / "report.json").read_text()), SCHEMA)
    again = parity.Report.from_json(tmp_path)
    assert again.faults[0].lines == report.faults[0].lines
    own, other = report.faults[0].lines.port[0], report.faults[0].lines.reference[0]
    for text in (as_text(report), as_text(again), (tmp_path / "report.md").read_text()):
        assert f"port {own.place}"[:40] in text
        assert f"> {own.line}" in text
        assert f"> {other.line}" in text
    page = (tmp_path / "report.html").read_text()
    assert f"<mark>{own.line} " in page
    assert f'<span class="path">{other.place}</span>' in page


def test_a_function_without_taps_is_seen_by_its_values(net):
    def function(params, x):
        for name in ("first", "second"):
            own = params[name]
            mean = x.mean(-1, keepdims=True)
            scaled = (x - mean) / jnp.sqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5)
            h = scaled * own["norm"]["weight"][None] + own["norm"]["bias"][None]
            h = (h @ own["up"]["weight"].T + own["up"]["bias"][None]) * 0.5
            h = nnx.gelu(h)  # fault: function
            x = x + h @ own["down"]["weight"].T + own["down"]["bias"][None]
        return x

    params = {}
    for name, tensor in net.state_dict().items():
        block, layer, leaf = name.split(".")
        params.setdefault(block, {}).setdefault(layer, {})[leaf] = jnp.asarray(tensor.numpy())
    fault = compare(net, parity.Functional(function, params), (X,)).first_fault
    assert fault.lines.port[0].line in marked(__file__, "function")
    assert fault.lines.reference[0].text.strip() == "return x + self.down(F.gelu(h))"


def test_a_sum_that_is_missing_in_a_loop_parts_once_in_each_turn():
    first, second = (torch.nn.Linear(6, 6) for _ in range(2))
    weights = [(jnp.asarray(x.weight.detach().numpy()), jnp.asarray(x.bias.detach().numpy()))
               for x in (first, second)]  # fmt: skip

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            for layer in (self.first, self.second):
                x = x + layer(torch.tanh(x))
                x = x + x * torch.sigmoid(x)
            return x

    def function(x):
        for weight, bias in weights:
            x = jnp.tanh(x) @ weight.T + bias[None]
            x = x + x * nnx.sigmoid(x)  # fault: sum
        return x

    ref, outputs = torch_operations.run(Sums(), [], (torch.from_numpy(X),))
    port, returned = jax_operations.run(function, (jnp.asarray(X),))
    pair = Pair(Result(outputs[0]), Result(returned[0]))

    def wrong(values):
        twin = values.pair(pair.ref.value, pair.port.value)
        return [] if twin and twin.plain else [pair]

    found = partings(ref, port, 10.0, wrong)
    assert len(found) == 2
    assert [len(one.still) for one in found] == [1, 0]


def test_what_parts_again_below_the_limit_of_a_norm_is_no_second_fault(monkeypatch):
    unexplained = (*explain.UNEXPLAINED, "norm_axes")  # as if no change accounted for the error
    monkeypatch.setattr(explain, "UNEXPLAINED", unexplained)
    (one,) = [case for case in CASES if case.name == "other_number_of_groups"]
    reference, port, x = zoo_nets(one, True, 0)
    (fault,) = compare(reference, port, (x,)).faults
    assert fault.path == one.path


def test_a_line_in_another_file_shows_where_that_is_called():
    def port_call(self, x):
        h = helper.halved(x)
        return self.fc(h)

    reference = torch_of(lambda self, x: self.fc(x / 3), fc=torch.nn.Linear(4, 4))
    port = nnx_of(port_call, fc=ported(reference.fc))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    lines = compare(reference, port, (x,)).first_fault.lines.port
    found = [(Path(line.file).name, line.text.strip(), line.operation) for line in lines]
    assert found[0][:2] == ("helper.py", "return x / 2")
    assert (Path(__file__).name, "h = helper.halved(x)", "call of halved") in found


def test_what_is_returned_as_given_shows_the_function():
    def given(self, x):
        return x

    reference = torch_of(lambda self, x: F.silu(x))
    lines = compare(reference, nnx_of(given), (X,)).first_fault.lines
    assert lines.port[0].text.strip() == "def given(self, x):"
    assert "F.silu" in lines.reference[0].text


def test_results_that_are_exchanged_show_where_that_was_done():
    def forward(self, x):
        return self.fc(x).chunk(2, -1)

    def port_call(self, x):
        h = self.fc(x)
        joined = jnp.concatenate([h[:, 4:], h[:, :4]], -1)
        return jnp.split(joined, 2, -1)

    reference = torch_of(forward, fc=torch.nn.Linear(6, 8))
    fault = compare(reference, nnx_of(port_call, fc=ported(reference.fc)), (X,)).first_fault
    assert fault.cause == "reshape_order"
    assert "joined = jnp.concatenate" in fault.lines.port[1].text


def test_complex_values_part_by_both_their_parts():
    angles = torch.arange(5.0)[:, None] * 10.0 ** -torch.arange(3)
    factors = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x):
        turned = torch.view_as_complex(self.fc(x).unflatten(-1, (3, 2)).contiguous()) * factors
        return torch.view_as_real(turned).flatten(2)

    def port_call(self, x):
        h = self.fc(x).reshape(*x.shape[:-1], 3, 2)
        h = (h[..., 0] + 1j * h[..., 1]) * jnp.conj(jnp.asarray(factors)[None])  # fault: conjugate
        return jnp.stack([h.real, h.imag], -1).reshape(x.shape)

    reference = torch_of(forward, fc=randomise(torch.nn.Linear(6, 6)))
    x = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
    fault = compare(reference, nnx_of(port_call, fc=ported(reference.fc)), (x,)).first_fault
    assert fault.cause == "rotary"
    assert fault.lines.port[0].line in marked(__file__, "conjugate")
