"""The weight map: alone on tensors, and in the reports of whole comparisons."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import torch
from flax import nnx

import parity
from parity import Fused, InputError, Stacked
from parity.capture import nnx as capture_nnx
from parity.capture import torch as capture_torch
from parity.core.tensors import Tensor, TensorPart
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown
from parity.weights.axis_order import fingerprint, regroups, same_values
from parity.weights.weight_map import make_weight_map
from tests.nets import port_of, ported, torch_of
from tests.parity.conftest import renamed
from tests.ports import copy_weights, nnx_of
from tests.reports import compare

RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((5, 4, 3, 2)).astype(np.float32)  # (out, in, height, width)
USUAL = KERNEL.transpose(2, 3, 1, 0)
VECTOR = RNG.standard_normal(7).astype(np.float32)


def tensor(full_name, values, buffer=False):
    path, _, name = full_name.rpartition(".")
    return Tensor(path, name, values.shape, lambda: values, buffer)


def line(ref, port, name="weight", buffer=False, others=()):
    """The weight_map's line of one tensor, in a module of these."""
    theirs = [tensor(f"a.{name}", ref, buffer), *others]
    ours = "kernel" if ref.ndim > 1 else "bias"
    leaves = [] if port is None else [tensor(f"a.{ours}", port, buffer)]
    return make_weight_map(theirs, leaves)[0]


@pytest.mark.parametrize(
    "port", [USUAL, USUAL * np.float32(1 + 1e-7)], ids=["exact", "up to rounding"]
)
def test_the_usual_order(port):
    found = line(KERNEL, port)
    assert (str(found.transform), found.cause, found.finding) == ("(2, 3, 1, 0)", "", "")
    assert (found.shape, found.nnx_shape) == ((5, 4, 3, 2), (3, 2, 4, 5))


@pytest.mark.parametrize(
    ("port", "cause", "says"),
    [
        (USUAL[::-1], "weights_layout", "flipped along axes (2,)"),
        (USUAL[::-1, ::-1], "weights_layout", "flipped along axes (2, 3)"),
        (KERNEL.reshape(USUAL.shape), "weights_layout", "reshaped to fit"),
        (
            USUAL.reshape(-1, 5)[RNG.permutation(24)].reshape(USUAL.shape),
            "weights_layout",
            "holds its values in another order, which is none of the axes",
        ),
        (
            USUAL.astype(ml_dtypes.bfloat16).astype(np.float32),
            "weights_precision",
            "rounded to bfloat16",
        ),
        (USUAL.astype(np.float16).astype(np.float32), "weights_precision", "rounded to float16"),
        (np.ones_like(USUAL), "weights_missing", "every entry is 1, as if never loaded"),
        (
            RNG.standard_normal(USUAL.shape).astype(np.float32),
            "weights_missing",
            "unrelated to the reference's",
        ),
        (USUAL * np.float32(1.1), "weights_value", "off by 0.1 of its size (cosine 1.0000)"),
        (USUAL[:2], "shape", "(5, 4, 3, 2), and the port's `a.kernel` is (2, 2, 4, 5)"),
        (None, "weights_missing", "the port has no such tensor"),
    ],
    ids=["flipped", "flipped twice", "reshaped", "shuffled", "bfloat16", "float16", "initial",
         "unrelated", "scaled", "other size", "none"],
)  # fmt: skip
def test_findings(port, cause, says):
    found = line(KERNEL, port)
    assert (found.cause, found.transform) == (cause, "")
    assert says in found.finding
    assert found.paired == (cause not in ("shape",) and port is not None)


def test_axes_in_an_unusual_order():
    square = RNG.standard_normal((5, 4, 3, 3)).astype(np.float32)
    found = line(square, square.transpose(3, 2, 1, 0))
    assert (str(found.transform), found.cause) == ("(3, 2, 1, 0)", "weights_layout")
    assert found.finding == "axes (3, 2, 1, 0) of the reference, not (2, 3, 1, 0)"


@pytest.mark.parametrize(
    ("axes", "cause"),
    [
        ((2, 3, 1, 0), ""),
        ((2, 3, 0, 1), ""),  # a transposed convolution has its channels either way round
        ((3, 2, 1, 0), "weights_layout"),
        ((3, 2, 0, 1), "weights_layout"),
    ],
)
def test_axes_of_a_kernel_with_as_many_channels_in_as_out(axes, cause):
    kernel = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)
    assert line(kernel, kernel.transpose(axes)).cause == cause


def test_the_values_of_another_layer():
    other = tensor("b.bias", VECTOR[::-1] * 2)
    found = line(VECTOR, other.read(), name="bias", others=[other])
    assert (found.cause, found.finding) == ("weights_swapped", "holds the values of b.bias")


def test_buffers():
    found = line(VECTOR, VECTOR * np.float32(0.99), name="running_var", buffer=True)
    assert (found.kind, found.cause) == ("buffer", "norm_buffers")
    assert "0.99 times the reference's" in found.finding
    ids = line(np.arange(7), np.arange(7)[::-1] % 5, name="ids", buffer=True)
    assert ids.cause == "norm_buffers"
    mask = np.eye(4, dtype=bool)
    assert line(mask, mask, name="mask", buffer=True).finding == ""
    assert line(mask, ~mask, name="mask", buffer=True).cause == "norm_buffers"
    assert make_weight_map([tensor("a.num_batches_tracked", np.zeros(()), buffer=True)], []) == ()


def test_axes_that_are_merged_or_split():
    heads = RNG.standard_normal((6, 5)).astype(np.float32)  # (heads * size, in)
    assert str(line(heads, heads.T.reshape(5, 2, 3)).transform) == "(1, 0) reshaped"
    patches = RNG.standard_normal((5, 4, 2, 2)).astype(np.float32)
    assert line(patches, patches.transpose(2, 3, 1, 0).reshape(16, 5)).transform
    assert line(patches, patches.reshape(5, 16).T).finding == ""  # (in, height, width) merged
    assert line(patches, patches.reshape(16, 5)).cause == "weights_layout"
    assert line(VECTOR.reshape(7, 1, 1), VECTOR).finding == ""
    assert regroups((6, 5), (2, 3, 5))
    assert not regroups((6, 5), (5, 3, 2))


def test_a_scalar_of_another_value_was_loaded():
    found = line(np.asarray(2.0, "f"), np.asarray(3.0, "f"))
    assert (found.cause, "as if never loaded" in found.finding) == ("weights_value", False)


def test_an_empty_tensor_of_another_name():
    found = make_weight_map([tensor("a.weight", KERNEL)], [tensor("a.lora", np.zeros((3, 0)))])
    assert found[0].cause == "weights_missing"


@pytest.mark.parametrize("kind", [bool, np.float32])
@pytest.mark.parametrize(("one", "other"), [(0, 3), (1, 2), (4, 6)])
def test_a_mask_of_another_threshold_is_in_no_other_order(kind, one, other):
    ref, port = (np.arange(8) < threshold for threshold in (one, other))
    assert line(ref.astype(kind), port.astype(kind), "mask", True).cause == "norm_buffers"


def test_rows_that_come_again_take_no_time():
    """Windows of Swin, most of which have the same mask, and the port's own number for -100."""
    apart = np.zeros((64, 49, 49), bool)
    apart[7::8, :28, 28:] = apart[7::8, 28:, :28] = True
    found = line(*(np.where(apart, low, 0).astype("f") for low in (-100, -1e9)), "attn_mask", True)
    assert found.cause == "norm_buffers"
    numbers = np.random.default_rng(0).normal(size=7)[np.arange(49) % 7]  # more values
    ref, port = (np.where(apart, low, numbers).astype("f") for low in (-100, -1e9))
    assert line(ref, port, "attn_mask", True).cause == "norm_buffers"


def test_scalars_and_square_kernels():
    assert same_values(np.float32(2).reshape(()), np.float32(2).reshape(())) == ()
    square = RNG.standard_normal((3, 3))
    assert same_values(square, square.T) == (1, 0)
    assert same_values(square, square) == (0, 1)
    assert line(square, square).cause == "weights_layout"
    table = make_weight_map([tensor("a.weight", square)], [tensor("a.embedding", square)])
    assert table[0].finding == ""  # only a kernel has a usual order


def test_a_part_of_a_part_is_a_part_of_the_whole():
    random = np.random.default_rng(0)
    whole = np.arange(24 * 5).reshape(24, 5)
    for _ in range(200):
        start = int(random.integers(0, 3)) * 4
        outer = TensorPart(((start, start + 12),))
        low = int(random.integers(0, 3))
        inner = [(low, low + 1, 4), (low, low + 2), (low, None), (low, low + 1, 3, 3, 9)]
        one = TensorPart((inner[int(random.integers(4))], (1, 3)))
        assert np.array_equal(outer.inside(one).of(whole), one.of(outer.of(whole)))


def test_a_fingerprint_is_that_of_the_values_in_any_order():
    assert fingerprint(KERNEL) == fingerprint(USUAL) == fingerprint(USUAL[::-1])
    other = KERNEL.copy()
    other[0, 0, 0, :] = other[0, 0, 0, 0]
    assert fingerprint(other) != fingerprint(KERNEL)


def test_tensors_of_one_module_pair_by_name_then_values_then_size():
    theirs = [tensor(f"a.{name}", VECTOR + i) for i, name in enumerate(("weight", "gamma", "beta"))]
    ours = [("shift", VECTOR + 2), ("factor", VECTOR + 1), ("scale", VECTOR)]
    found = make_weight_map(theirs, [tensor(f"a.{name}", values) for name, values in ours])
    assert [one.nnx_name for one in found] == ["a.scale", "a.factor", "a.shift"]
    assert not any(one.finding for one in found)


def test_lists_of_parameters():
    own = [torch.nn.Parameter(torch.tensor(VECTOR) + i) for i in range(2)]
    reference = torch_of(lambda self: None, scales=torch.nn.ParameterList(own))
    leaves = nnx.List([nnx.Param(jnp.asarray(VECTOR) + i) for i in range(2)])
    port = nnx_of(lambda self: None, scales=leaves, rngs=nnx.Rngs(0))
    found = make_weight_map(capture_torch.named_tensors(reference), capture_nnx.named_tensors(port))
    assert [one.nnx_name for one in found] == ["scales.0", "scales.1"]
    assert not any(one.finding for one in found)


def test_a_shared_tensor_may_be_one_leaf():
    def shared(name):
        return Tensor(name, "weight", KERNEL.shape, lambda: KERNEL, identity=7)

    found = make_weight_map([shared("embed"), shared("head")], [tensor("embed.kernel", USUAL)])
    assert [one.nnx_name for one in found] == ["embed.kernel", "embed.kernel"]


@pytest.mark.parametrize(
    ("name", "off"), [("head.kernel", 0), ("out.kernel", 0), ("head.kernel", 1)]
)
def test_a_shared_tensor_may_be_a_leaf_for_each_name(name, off):
    """Its copy may be called otherwise; one with the name and other values is a mistake."""
    theirs = [
        Tensor(path, "weight", KERNEL.shape, lambda: KERNEL, identity=7)
        for path in ("embed", "head")
    ]
    leaves = [tensor("embed.kernel", USUAL), tensor(name, USUAL + np.float32(off))]
    found = make_weight_map(theirs, leaves)
    assert [one.nnx_name for one in found] == ["embed.kernel", name]
    assert [bool(one.finding) for one in found] == [False, bool(off)]


class Idle(torch.nn.Module):
    """One module that runs, and many that do not."""

    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(4, 4)
        self.table = torch.nn.Embedding(6, 4)
        self.flipped = torch.nn.Conv2d(2, 3, (2, 5))
        for name in ("permuted", "rounded", "initial", "one", "two", "unrelated", "right"):
            setattr(self, name, torch.nn.Linear(6, 6))
        self.norm = torch.nn.BatchNorm1d(5)
        self.lost = torch.nn.Linear(3, 2)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)
        self.norm.running_mean.normal_()

    def forward(self, x, ids):
        return self.used(x) + self.table(ids)


def make_idle(reference):
    """The port: a layer that is not called holds its weights all the same."""
    layers = {
        path: ported(module)
        for path, module in reference.named_children()
        if path not in ("norm", "lost")
    }
    held, norm = reference.norm, nnx.BatchNorm(5, use_running_average=True, rngs=nnx.Rngs(0))
    copy_weights(held, norm)
    norm.mean[...], norm.var[...] = held.running_mean.numpy(), held.running_var.numpy()
    return nnx_of(lambda self, x, ids: self.used(x) + self.table(ids), norm=norm, **layers)


X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
IDS = np.array([0, 1, 2])


@pytest.fixture(scope="module")
def spoiled():
    """One comparison in which every idle module has something else wrong with its weights."""
    torch.manual_seed(0)
    reference = Idle().eval()
    port = make_idle(reference)
    port.eval()
    kernel = {name: held.kernel for name, held in vars(port).items() if hasattr(held, "kernel")}
    kernel["flipped"][...] = kernel["flipped"][...][::-1]
    kernel["permuted"][...] = kernel["permuted"][...].T
    kernel["rounded"][...] = kernel["rounded"][...].astype(jnp.bfloat16).astype(jnp.float32)
    kernel["initial"][...] = jnp.zeros((6, 6))
    kernel["one"][...], kernel["two"][...] = kernel["two"][...], kernel["one"][...]
    kernel["unrelated"][...] = jnp.asarray(RNG.standard_normal((6, 6)), jnp.float32)
    port.norm.mean[...] = port.norm.mean[...] * 2
    port.table.embedding[...] = port.table.embedding[...].at[5].mul(3)  # a row that is not read
    port.right.extra = nnx.Param(jnp.ones(2))
    return parity.compare(reference, port, (X, IDS))


@pytest.mark.parametrize(
    ("name", "cause", "says"),
    [
        ("table.weight", "weights_value", "16.7 % of its entries differ"),
        ("flipped.weight", "weights_layout", "flipped along axes (2,)"),
        ("permuted.weight", "weights_layout", "axes (0, 1) of the reference, not (1, 0)"),
        ("rounded.weight", "weights_precision", "rounded to bfloat16"),
        ("initial.weight", "weights_missing", "every entry is 0, as if never loaded"),
        ("one.weight", "weights_swapped", "holds the values of two.weight"),
        ("unrelated.weight", "weights_missing", "unrelated to the reference's"),
        ("norm.running_mean", "norm_buffers", "2 times the reference's"),
        ("lost.weight", "weights_missing", "the port has no such tensor"),
        ("right.weight", "", ""),
        ("used.weight", "", ""),
    ],
)
def test_findings_in_a_report(spoiled, name, cause, says):
    found = {one.name: one for one in spoiled.weights}
    assert found[name].cause == cause
    assert says in found[name].finding


def test_what_no_call_tells_is_a_warning(spoiled):
    assert spoiled.faults == ()
    assert spoiled.coverage.complete
    assert spoiled.verdict == "WARN"
    note = next(note for note in spoiled.notes if "weights" in note)
    assert note.startswith("12 weights are not the reference's, though no call fails: table.weight")
    assert note.endswith("; and 7 more")
    extra = spoiled.weights[-1]
    assert (extra.name, extra.nnx_name) == ("", "right.extra")
    assert extra.finding == "belongs to no tensor of the reference"


def test_the_weight_map_in_every_form(spoiled, tmp_path):
    spoiled.write(tmp_path)
    table = pd.read_csv(tmp_path / "weights.csv", keep_default_na=False)
    assert list(table.columns)[:8] == [
        "name", "nnx_name", "kind", "shape", "nnx_shape", "transform", "cause", "finding",
    ]  # fmt: skip
    assert len(table) == len(spoiled.weights) == 26
    row = table[table.name == "flipped.weight"].iloc[0]
    assert (row["shape"], row["nnx_shape"], row["kind"]) == ("3x2x2x5", "2x5x2x3", "parameter")
    text = as_markdown(spoiled)
    assert "weights: 14 of 25 tensors equal" in text
    assert "**weights_precision**: rounded.weight: rounded to bfloat16" in text
    assert json.loads(as_json(spoiled))["weights"][0]["transform"] == "(1, 0)"


def test_a_declared_weight_may_differ(pair, image):
    reference, port = pair
    port.spare = nnx.Param(jnp.ones(3))
    coverage = parity.compare(reference, port, (image,)).coverage
    assert coverage.unmatched_tensors == ("spare: belongs to no tensor of the reference",)
    report = parity.compare(reference, port, (image,), ignore=["spare"])
    assert report.verdict == "PASS"
    assert report.weights[-1].declared == "ignored by the caller"


def test_an_order_of_axes_that_the_port_knows_how_to_read_is_right():
    def make_port(reference):
        return nnx_of(
            lambda self, x: x @ self.kernel[...].T + self.bias[...].reshape(1, -1),
            kernel=nnx.Param(jnp.asarray(reference.weight.detach().numpy())),
            bias=nnx.Param(jnp.asarray(reference.bias.detach().numpy())),
        )

    reference = torch.nn.Linear(4, 4)
    report = parity.compare(reference, make_port(reference), (X,))
    assert report.verdict == "PASS"
    assert str(report.weights[0].transform) == "(0, 1)"


def make_attention():
    def attend(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        return torch.softmax(q @ k.T, -1) @ v

    return torch_of(attend, **{f"to_{name}": torch.nn.Linear(4, 4) for name in "qkv"})


def tensors(layers):
    """The kernels, as the port has them, and the biases of linear layers."""
    kernels = [layer.weight.detach().numpy().T for layer in layers]
    return kernels, [layer.bias.detach().numpy() for layer in layers]


def make_fused(reference, order="qkv"):
    """The port with q, k and v in one kernel, in this order of the reference's."""

    def attend(self, x):
        q, k, v = jnp.split(self.qkv(x), 3, -1)
        return nnx.softmax(q @ k.T, -1) @ v

    qkv = nnx.Linear(4, 12, rngs=nnx.Rngs(0))
    kernels, biases = tensors([getattr(reference, f"to_{letter}") for letter in order])
    qkv.kernel[...] = jnp.asarray(np.concatenate(kernels, -1))
    qkv.bias[...] = jnp.asarray(np.concatenate(biases))
    return nnx_of(attend, qkv=qkv)


FUSED = (
    Fused("to_*.weight", into="qkv.kernel"),
    Fused(("to_q.bias", "to_k.bias", "to_v.bias"), into="qkv.bias"),
)


def test_rules_come_in_a_tuple(pair, image):
    with pytest.raises(InputError, match="fused: expected a tuple of rules, found a bare Fused"):
        parity.compare(*pair, (image,), fused=FUSED[0])


def test_fused_leaves():
    reference = make_attention()
    report = parity.compare(reference, make_fused(reference), (X,), fused=FUSED)
    assert report.verdict == "PASS"
    assert report.coverage.matched_parameters == report.coverage.parameters == 6
    assert sorted(report.coverage.inlined) == ["qkv", "to_k", "to_q", "to_v"]
    assert [str(one.transform) for one in report.weights] == [
        "(1, 0) at [:, 0:4]", "(0,) at [0:4]",
        "(1, 0) at [:, 4:8]", "(0,) at [4:8]",
        "(1, 0) at [:, 8:12]", "(0,) at [8:12]",
    ]  # fmt: skip
    assert parity.compare(reference, make_fused(reference), (X,))  # undeclared


def test_fused_in_another_order_is_the_cause():
    reference = make_attention()
    report = parity.compare(reference, make_fused(reference, "qvk"), (X,), fused=FUSED)
    assert [(fault.path, fault.cause) for fault in report.faults] == [("", "weights_swapped")]
    assert "to_k.weight: at [:, 4:8]: holds the values of to_v.weight" in report.faults[0].evidence


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Fused("to_q.weight", into="qkv.kernel", axis=2), r"qkv.kernel` \(4, 12\) has no axis 2"),
        (
            Fused("to_x.*", into="qkv.kernel"),
            "fused: 'to_x.*' matches no tensor of",
        ),
        (FUSED[0], r"to_q.weight is in Fused\("),
        ("to_q.weight", "expected parity.Fused or parity.Stacked, found a str"),
    ],
)
def test_rules_that_cannot_be_used(rule, message):
    reference = make_attention()
    rules = (FUSED[0], rule) if rule is FUSED[0] else (rule,)
    with pytest.raises(InputError, match=message):
        parity.compare(reference, make_fused(reference), (X,), fused=rules)


def test_rules_that_do_not_fit_are_findings():
    reference = make_attention()
    wrong = (
        Fused(("to_q.weight", "to_k.weight"), into="qkv.kernel"),
        Fused("to_v.weight", into="v.kernel"),
    )
    theirs = [tensor(name, p.detach().numpy()) for name, p in reference.named_parameters()]
    ours = [tensor("qkv.kernel", np.zeros((4, 12), np.float32))]
    found = {one.name: one for one in make_weight_map(theirs, ours, rules=wrong)}
    assert found["to_q.weight"].cause == "shape"
    assert "`qkv.kernel` (4, 12) does not hold `to_q.weight` (4, 4) and" in (
        found["to_q.weight"].finding
    )
    assert found["to_v.weight"].finding == "the port has no `v.kernel` to hold it"


def test_a_tensor_that_is_split():
    whole = RNG.standard_normal((9, 4)).astype(np.float32)
    ours = [tensor(f"a.{name}.kernel", whole[i * 3 : i * 3 + 3].T) for i, name in enumerate("qkv")]
    names = tuple(f"a.{name}.kernel" for name in "qkv")
    theirs = [tensor("a.in_proj_weight", whole)]
    rule = Fused("*.in_proj_weight", tuple(f"*.{name}.kernel" for name in "qkv"), axis=0)
    right = make_weight_map(theirs, ours, rules=[rule])
    assert make_weight_map(theirs, ours) == right
    assert [one.nnx_name for one in right] == list(names)
    assert [str(one.transform) for one in right] == [
        "(1, 0) of [0:3]", "(1, 0) of [3:6]", "(1, 0) of [6:9]",
    ]  # fmt: skip
    assert {one.shape for one in right} == {(9, 4)}
    rule = Fused("a.in_proj_weight", into=(names[1], names[0], names[2]), axis=0)
    wrong = make_weight_map(theirs, ours, rules=[rule])
    assert [one.cause for one in wrong] == ["weights_swapped", "weights_swapped", ""]
    assert wrong[0].finding == "holds the values of a.in_proj_weight[3:6]"


def in_turn(self, x):
    for layer in self.layers:
        x = torch.tanh(layer(x))
    return x


def make_stacked(reference, order=(0, 1, 2)):
    """The port with the same layers in a scan."""

    @nnx.vmap(in_axes=0, out_axes=0)
    def make(key):
        return nnx.Linear(4, 4, rngs=nnx.Rngs(key))

    def scanned(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def step(x, layer):
            return jnp.tanh(layer(x))

        return step(x, self.layers)

    layers = make(jax.random.split(jax.random.key(0), 3))
    kernels, biases = tensors([reference.layers[i] for i in order])
    layers.kernel[...] = jnp.asarray(np.stack(kernels))
    layers.bias[...] = jnp.asarray(np.stack(biases))
    return nnx_of(scanned, layers=layers)


STACKED = (
    Stacked("layers.*.weight", into="layers.kernel"),
    Stacked("layers.*.bias", into="layers.bias"),
)


def test_stacked_leaves():
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    reference = torch_of(in_turn, layers=layers)
    report = parity.compare(reference, make_stacked(reference), (X,), fused=STACKED)
    assert report.faults == ()
    assert report.coverage.unmatched_tensors == ()
    assert report.coverage.matched_parameters == report.coverage.parameters == 6
    assert [str(one.transform) for one in report.weights][::2] == [
        "(1, 0) at [0]", "(1, 0) at [1]", "(1, 0) at [2]",
    ]  # fmt: skip
    assert report.verdict == "PASS"
    wrong = parity.compare(reference, make_stacked(reference, (1, 0, 2)), (X,), fused=STACKED)
    assert [(fault.path, fault.cause) for fault in wrong.faults] == [
        ("layers.0", "weights_swapped"),
        ("layers.1", "weights_swapped"),
    ]


def test_names_need_not_be_said(pair, image):
    port = renamed(pair[1], stem="first", block="unit")
    report = parity.compare(pair[0], port, (image,))
    assert report.verdict == "PASS", report.notes
    assert {row.nnx_path for row in report.rows} >= {"first", "unit.norm"}


def test_a_wrong_tensor_is_paired_by_what_is_around_it():
    theirs, ours = [tensor("a.weight", KERNEL)], [tensor("a.conv.kernel", 2 * USUAL)]
    for ref, port in (
        (theirs, ours),
        ([tensor("a.conv.weight", KERNEL)], [tensor("a.kernel", 2 * USUAL)]),
    ):
        (found,) = make_weight_map(ref, port)
        assert (found.nnx_name, found.cause) == (port[0].full_name, "weights_value")
    theirs = [tensor("a.fc.weight", KERNEL), tensor("a.fc.bias", VECTOR)]
    ours = [tensor("x.y.kernel", USUAL), tensor("x.y.bias", 2 * VECTOR), tensor("z.bias", VECTOR)]
    found = make_weight_map(theirs, ours[:2])
    assert [one.nnx_name for one in found] == ["x.y.kernel", "x.y.bias"]
    assert make_weight_map(theirs, ours)[1].nnx_name == "z.bias"  # values decide


def test_a_tensor_of_another_place():
    theirs = [tensor("block.gamma", VECTOR), tensor("block.beta", VECTOR[:3])]
    found, none = make_weight_map(theirs, [tensor("block.ls.scale", VECTOR)])
    assert (found.nnx_name, found.finding) == ("block.ls.scale", "")
    assert none.finding == "the port has no such tensor"


def layer(i, name, values):
    return tensor(f"layers.{i}.{name}", values)


def test_stacked_and_fused_leaves_are_found():
    parts = RNG.standard_normal((3, 2, 8, 4)).astype(np.float32)  # layer, of q and k, out, in
    theirs = [layer(i, f"{n}.weight", parts[i, j]) for i in range(3) for j, n in enumerate("qk")]
    theirs += [layer(i, f"{n}.bias", np.zeros(8, np.float32)) for i in range(3) for n in "qk"]
    kernel = np.concatenate([parts[:, 0], parts[:, 1]], 1).transpose(0, 2, 1)  # layer, in, 16
    ours = [tensor("all.qk.kernel", kernel), tensor("all.qk.bias", np.zeros((3, 16), np.float32))]
    found = make_weight_map(theirs, ours)
    assert [str(one.at) for one in found[:3]] == ["[0, :, 0:8]", "[0, :, 8:16]", "[1, :, 0:8]"]
    assert [str(one.at) for one in found[6:9]] == ["[0, 0:8]", "[0, 8:16]", "[1, 0:8]"]
    assert not any(one.finding for one in found)


def test_a_layer_of_a_stack_that_was_never_loaded_is_named():
    scales = 1 + RNG.standard_normal((3, 6)).astype(np.float32)
    theirs = [layer(i, "norm.weight", scales[i]) for i in range(3)]
    loaded = scales.copy()
    loaded[1] = 1
    found = make_weight_map(theirs, [tensor("all.norm.scale", loaded)])
    assert [one.cause for one in found] == ["", "weights_missing", ""]
    assert found[1].finding == "at [1]: every entry is 1, as if never loaded"


def test_exchanged_tensors_of_one_name_are_exchanged():
    values = {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in "kv"}
    theirs = [tensor(f"{name}.weight", one) for name, one in values.items()]
    swapped = [tensor(f"{a}.kernel", values[b].T) for a, b in ("kv", "vk")]
    found = make_weight_map(theirs, swapped)
    assert [one.cause for one in found] == ["weights_swapped"] * 2
    others = [tensor("key.kernel", values["k"].T), tensor("k.kernel", values["v"].T)]
    assert [one.nnx_name for one in make_weight_map(theirs, others)] == ["key.kernel", "k.kernel"]


def test_a_buffer_that_no_checkpoint_holds_needs_no_counterpart():
    kept = Tensor("rope", "inv_freq", VECTOR.shape, lambda: VECTOR, buffer=True, derived=True)
    assert make_weight_map([kept], []) == ()
    assert make_weight_map([kept], [tensor("rope.freq", VECTOR)])[0].nnx_name == "rope.freq"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rename": {"stm": "first"}},
            "rename: 'stm' matches no module or tensor of",
        ),
        (
            {"ignore": ["block.cnv"]},
            "ignore: 'block.cnv' matches no module or tensor; did",
        ),
        ({"ignore": ["block#9"]}, "ignore: 'block#9' matches no output; did you mean 'block#"),
    ],
)
def test_a_glob_that_matches_nothing_is_refused(pair, image, options, message):
    with pytest.raises(InputError, match=message):
        parity.compare(*pair, (image,), **options)


def test_a_parametrized_weight_says_what_to_do_first():
    torch.manual_seed(0)
    reference = torch.nn.Sequential()
    reference.add_module("fc", torch.nn.Linear(4, 4))
    port = port_of(reference, lambda self, x: self.fc(x))
    torch.nn.utils.parametrizations.weight_norm(reference.fc)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = compare(reference, port, (x,))
    assert report.verdict == "FAIL"
    call = "parametrize.remove_parametrizations(reference.get_submodule('fc'), 'weight')"
    assert report.coverage.unmatched_tensors[0].endswith(f"first call torch.nn.utils.{call}")
    assert call in report.notes[0]
    assert not any("rename" in text for text in report.coverage.unmatched_tensors)
    parametrize = torch.nn.utils.parametrize
    parametrize.remove_parametrizations(reference.get_submodule("fc"), "weight")
    assert compare(reference, port, (x,)).verdict == "PASS"
