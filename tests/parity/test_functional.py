"""Ports that are functions over nested parameters."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import parity
from parity.capture.functional import Params
from parity.capture.nnx import named_tensors, submodules
from parity.cli import cli
from parity.traces.check import check_trace
from parity.traces.record import record_pair
from tests.nets import torch_of
from tests.parity.functional_gpt import IDS, gpt, make_params, make_reference
from tests.reports import places


def compare(
    reference=None, change=lambda params: params, check_compiled=False, options=None, **settings
):
    reference = reference or make_reference()
    port = parity.Functional(partial(gpt, **settings), change(make_params(reference)))
    return parity.compare(reference, port, (IDS,), check_compiled=check_compiled, **(options or {}))


@pytest.fixture(scope="module")
def healthy():
    return compare(check_compiled=True)


def test_a_tap_stands_for_the_module_of_its_path(healthy):
    assert healthy.verdict == "PASS", healthy.notes
    rows = {row.path: row for row in healthy.rows}
    layer = ["norm1", "attn", "norm2", "mlp"]
    names = [f"layers.{i}{name}" for i in range(2) for name in (*(f".{x}" for x in layer), "")]
    assert list(rows) == [*names, "norm", ""]
    assert rows["layers.1.norm2"].kind == "LayerNorm"
    assert np.isfinite(rows["layers.1"].exclusive.r)
    assert rows["layers.1"].inclusive is None
    assert rows[""].inclusive.rel_l2 < 1e-6


def test_what_has_no_tap_counts_with_the_tap_after_it(healthy):
    coverage = healthy.coverage
    assert coverage.complete
    assert set(coverage.inlined) == {
        "words", *(f"layers.{i}.{name}" for i in range(2)
                   for name in ("attn.qkv", "attn.out", "mlp.fc", "mlp.act", "mlp.out")),
    }  # fmt: skip
    assert coverage.parameters == coverage.matched_parameters == 27
    assert all(line.transform and not line.finding for line in healthy.weights)
    kernels = {line.nnx_name: str(line.transform) for line in healthy.weights}
    assert kernels["layers.1.mlp.fc.kernel"] == "(1, 0)"


def test_two_mistakes_are_named_with_place_and_cause():
    report = compare(wrong={0: {"approximate": False}, 1: {"epsilon": 1e-3}})
    assert places(report) == [
        ("layers.0.mlp", "between `layers.0.norm2` and `layers.0.mlp`", "activation"),
        ("layers.1.norm1", "between `layers.0` and `layers.1.norm1`", "epsilon"),
    ]
    first, second = (fault.lines for fault in report.faults)
    assert "jax.nn.gelu(" in first.port[0].text
    assert "self.act(" in first.reference[0].text
    assert "jax.lax.rsqrt(" in second.port[0].text
    assert "self.norm1(" in second.reference[0].text  # LayerNorm is of a library
    assert "exact GELU instead of gelu" in report.first_fault.evidence


class Deep(torch.nn.Module):
    """More modules than the runs that a search may make."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(70))

    def forward(self, x):
        for at, layer in enumerate(self.layers):
            x = x + (torch.nn.functional.silu if at == 40 else torch.tanh)(layer(x)) / 8
        return x


def test_modules_that_may_be_left_out_are_no_first_guess_where_all_may():
    reference = Deep().eval()
    layers = [
        (jnp.asarray(one.weight.detach().numpy().T), jnp.asarray(one.bias.detach().numpy())[None])
        for one in reference.layers
    ]

    def port(params, x):
        for at, (kernel, bias) in enumerate(params):
            x = x + (jax.nn.relu if at == 40 else jnp.tanh)(x @ kernel + bias) / 8
        return x

    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = parity.compare(reference, parity.Functional(port, layers), (x,), check_compiled=False)
    assert [fault.cause for fault in report.faults] == ["activation"]
    assert "ReLU instead of silu" in report.first_fault.evidence


@pytest.mark.slow
def test_a_mistake_between_taps_that_are_far_apart():
    report = compare(wrong={1: {"epsilon": 1e-3}}, inside=False)
    assert places(report) == [("layers.1", "between `layers.0` and `layers.1`", "epsilon")]
    assert {row.path for row in report.rows} == {"layers.0", "layers.1", "norm", ""}
    assert report.coverage.complete


def test_a_function_without_taps_is_one_row_and_a_note():
    report = compare(inside=False, around=False)
    assert [row.path for row in report.rows] == [""]
    assert report.verdict == "WARN"
    assert report.coverage.complete
    assert report.notes == (
        "__call__: the port is a function without taps, seen as a whole: name what the reference's"
        " modules return, as in parity.tap('layers.0.attn', y)",
    )


def test_wrong_weights_are_the_cause_at_the_tap_that_they_show_at():
    def swapped(params):
        first, second = params["layers"]
        first["mlp"]["out"], second["mlp"]["out"] = second["mlp"]["out"], first["mlp"]["out"]
        second["norm1"]["weight"] = second["norm1"]["weight"] * 1.01
        return params

    report = compare(change=swapped)
    assert [(path, cause) for path, _, cause in places(report)] == [
        ("layers.0.mlp", "weights_swapped"),
        ("layers.1.norm1", "weights_value"),
        ("layers.1.mlp", "weights_swapped"),
    ]
    assert "holds the values of layers.1.mlp.out" in report.first_fault.evidence


def test_a_parameter_that_is_missing_or_too_many_is_no_match():
    def changed(params):
        params["layers"][0]["norm1"]["more"] = jnp.ones(3)
        del params["layers"][1]["mlp"]["fc"]["bias"]
        params["layers"][1]["mlp"]["fc"]["bais"] = jnp.zeros(1)
        return params

    def lenient(params, ids):
        params["layers"][1]["mlp"]["fc"]["bias"] = jnp.zeros(32)
        return gpt(params, ids)

    reference = make_reference()
    port = parity.Functional(lenient, changed(make_params(reference)))
    report = parity.compare(reference, port, (IDS,), check_compiled=False)
    texts = report.coverage.unmatched_tensors
    assert [text.split(":")[0] for text in texts] == [
        "layers.1.mlp.fc.bias", "layers.0.norm1.more", "layers.1.mlp.fc.bais",
    ]  # fmt: skip
    assert not report


def test_a_function_that_was_compiled_before():
    compiled = {}

    def warm(function):
        return compiled.setdefault(function.__defaults__[0], jax.jit(function))

    reference = make_reference()
    before = gpt(make_params(reference), IDS, wrapped=warm)
    report = compare(reference, wrapped=warm)
    assert report.verdict == "PASS", report.notes
    assert "layers.1.attn" in {row.path for row in report.rows}
    np.testing.assert_array_equal(gpt(make_params(reference), IDS, wrapped=warm), before)
    for function in compiled.values():
        assert function._cache_size() == 1


def test_what_is_computed_again_for_gradients_is_looked_into():
    report = compare(wrapped=jax.checkpoint)
    assert report.verdict == "PASS", report.notes
    assert "layers.1.attn" in {row.path for row in report.rows}
    assert not report.doubts


def test_gradients_are_those_of_the_whole_function():
    """The bias of the keys, whose gradient cancels, is a part of that of `qkv`."""
    report = compare(options={"gradients": True})
    assert report.verdict == "PASS", [row.reason for row in report.doubts]
    rows = [row for row in report.rows if row.case == "__call__/grad"]
    assert {row.path for row in rows} == {""}
    assert "grad(layers.0.attn.qkv.bias)" in {row.leaf for row in rows}


def test_a_mistake_at_a_tap_does_not_hide_the_gradient_and_comes_before_it():
    """That of the function has it too, and may have another besides: it says where to look."""
    report = compare(wrong={1: {"approximate": False}}, options={"gradients": True})
    assert [(fault.path, fault.case) for fault in report.faults] == [
        ("layers.1.mlp", "__call__"),
        ("", "__call__/grad"),
    ]
    assert report.faults[1].evidence.endswith("look at that first")


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Held:
    kernel: object
    pair: Pair
    name: str = "held"


def test_parameters_have_the_names_of_the_keys_that_lead_to_them():
    params = {"a.b": Held(np.ones(2), Pair(jnp.ones(3), None)), "c": [{"w": np.ones((1, 4))}]}
    port = parity.Functional(lambda p, x: p, params)
    assert [tensor.full_name for tensor in named_tensors(port)] == [
        "a.b.kernel", "a.b.pair.first", "c.0.w",
    ]  # fmt: skip
    assert set(submodules(port)) == {"", "a", "a.b", "a.b.pair", "c", "c.0"}
    assert all(isinstance(module, Params) for path, module in submodules(port).items() if path)
    returned = port(None)
    assert returned["a.b"].name == "held"
    assert returned["a.b"].pair.second is None
    assert returned["c"][0]["w"].shape == (1, 4)
    assert port.params["a.b"].kernel.tolist() == [1, 1]
    bare = parity.Functional(lambda p, x: p * x, np.ones(2))
    assert bare(3.0).tolist() == [3.0, 3.0]
    odd = parity.Functional(lambda p, x: p["function"] * x, {"function": np.ones(1), "held": 1})
    assert odd(2.0).tolist() == [2.0]


@pytest.mark.parametrize(
    ("function", "params", "message"),
    [
        (3, {"a": np.ones(1)}, "expected a function, found a int"),
        (gpt, {"a": 1.0}, "expected parameters that hold arrays, found a dict"),
        (gpt, {"a": np.ones(1), "a.b": np.ones(1)}, "'a' is a parameter and holds 'a.b'"),
        (gpt, {"a.b": np.ones(1), "a": np.ones(1)}, "two parameters are named 'a'"),
    ],
)
def test_what_is_no_function_over_parameters(function, params, message):
    with pytest.raises(parity.InputError, match=message):
        parity.Functional(function, params)


def test_a_bare_function_is_refused_with_what_to_do():
    with pytest.raises(parity.InputError, match=r"wrap a function: parity\.Functional\("):
        parity.compare(make_reference(), gpt, (IDS,))


class Stacks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, scale):
        for one in self.layers:
            x = one(x).tanh() * scale
        return x


def scanned(params, inputs, scale):
    def step(x, p):
        return jnp.tanh(parity.tap("layers.*", x @ p["w"] + p["b"][None])) * scale, None

    return jax.lax.scan(step, inputs, params["stack"])[0]


def test_stacked_parameters_renamed_arguments_and_a_loop():
    reference = Stacks()
    weights = np.stack([one.weight.detach().numpy().T for one in reference.layers])
    biases = np.stack([one.bias.detach().numpy() for one in reference.layers])
    port = parity.Functional(scanned, {"stack": {"w": weights, "b": biases}})
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    rules = (
        parity.Stacked("layers.*.weight", into="stack.w"),
        parity.Stacked("layers.*.bias", into="stack.b"),
    )
    given = {"torch_kwargs": {"scale": np.float32(2)}, "fused": rules}
    report = parity.compare(reference, port, (x,), **given)
    assert report.coverage.complete
    assert report.coverage.matched_parameters == 6
    assert report.verdict == "PASS", report.notes
    assert [row.path for row in report.rows] == ["layers.0", "layers.1", "layers.2", ""]
    weights[1, 0, 0] += 1.0
    port = parity.Functional(scanned, {"stack": {"w": weights, "b": biases}})
    report = parity.compare(reference, port, (x,), check_compiled=False, **given)
    assert places(report) == [
        ("layers.1", "between `layers.0` and `layers.1`", "weights_value"),
    ]
    assert "layers.1.weight: at [1]" in report.first_fault.evidence


def test_a_part_of_a_function_cannot_be_asked_for_but_a_depth_can():
    with pytest.raises(parity.InputError, match="only: a port that is a function runs as a whole"):
        compare(options={"only": ["layers.0"]})
    report = compare(options={"depth": 2}, inside=True)
    assert {row.path for row in report.rows} == {"layers.0", "layers.1", "norm", ""}
    assert len(report.notes) == 1  # that of the depth
    assert report.coverage.complete


def test_another_function_of_the_same_parameters():
    def words(port, ids):
        return port.params["words"]["weight"][ids]

    reference = make_reference()
    port = parity.Functional(gpt, make_params(reference))
    report = parity.compare(
        reference, port, (IDS,), torch_method=lambda model, ids: model.words(ids),
        nnx_method=words, check_compiled=False,
    )  # fmt: skip
    assert report.verdict == "WARN"  # no taps there
    assert not report.doubts


def test_a_check_against_a_golden_trace(tmp_path):
    reference = make_reference()
    function = partial(gpt, wrong={1: {"epsilon": 1e-3}})
    port = parity.Functional(function, make_params(reference))
    pair = parity.Pair(
        name="gpt",
        make_torch=lambda options, seed: reference,
        make_nnx=lambda options, reference: port,
        cases=lambda reference, options, seed: (parity.Case("call", (IDS,)),),
        rungs=(),
        offline=parity.Offline(lambda reference: {}, lambda settings, tensors: port),
    )
    record_pair(pair, tmp_path)
    report = check_trace(tmp_path, pair)
    assert {row.path for row in report.rows} >= {"layers.1.norm1", "layers.0.mlp", "layers.1", ""}
    assert [path for path, _, _ in places(report)] == ["layers.1.norm1"]
    assert not report.notes
    wrong = {row.path for row in report.rows if row.verdict != "PASS"}
    assert wrong <= {"layers.1.norm1", ""}


def test_the_command(tmp_path):
    words = ["compare", "tests.parity.functional_gpt:make_pair", "--out", str(tmp_path), "--quiet"]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert (result.exit_code, result.output) == (0, "Gpt against Functional: PASS\n")
    rows = parity.Report.from_json(tmp_path).rows
    assert "layers.1.attn" in {row.path for row in rows}


def test_a_call_of_a_module_for_which_no_tap_comes():
    def apply(params, x):
        return jnp.tanh(parity.tap("n", jnp.tanh(x * params["one"])))

    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    reference = torch_of(lambda self, x: self.n(self.n(x)), n=torch.nn.Tanh())
    port = parity.Functional(apply, {"one": jnp.ones((1, 1))})
    report = parity.compare(reference, port, (x,), ignore=("one",))
    assert report.verdict == "WARN"
    assert "__call__: the port comes by no tap for `n call 1`: not compared" in report.notes
