"""`parity.compare` end to end on a small pair: correct, and with one thing wrong at a time."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import parity
from parity import InputError
from tests.nets import ported, torch_of
from tests.parity.conftest import renamed
from tests.ports import Relu, nnx_of
from tests.reports import compare


def replaced(port, path, function):
    """Wrap the output of one module of the port."""
    *parents, name = path.split(".")
    owner = port
    for part in parents:
        owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
    inner = getattr(owner, name)

    class Changed(type(inner)):
        def __call__(self, *args, **kwargs):
            return function(super().__call__(*args, **kwargs))

    object.__setattr__(inner, "__class__", Changed)


def test_a_correct_port_passes(pair, image):
    report = compare(*pair, (image,))
    assert report.verdict == "PASS"
    assert report
    assert report.first_fault is None
    coverage = report.coverage
    assert coverage.complete
    assert list(coverage.declared) == ["blocks"]
    assert len(coverage.matched) + 1 == len(list(pair[0].named_modules()))
    assert coverage.matched_calls == coverage.calls == 15
    assert coverage.matched_parameters == coverage.parameters == 12


def test_the_table(pair, image):
    table = compare(*pair, (image,)).table
    from parity.report.cells import COLUMNS

    assert tuple(table.columns) == COLUMNS
    assert list(table[table.path == "block"].call) == [0, 0, 1, 1]
    assert set(table[table.path == "block"].leaf) == {"0", "1.mean"}
    assert (table.grade == "perfect").all()
    assert np.isfinite(table.R).all()
    assert (table.incl_rel_l2 < 1e-6).all()  # 16 roundings
    assert table[table["path"] == ""]["shape"].tolist() == ["2x5", "2x7x9x8"]


@pytest.mark.parametrize(
    "path", ["stem", "block.norm", "block.act", "block.conv", "blocks.0.conv", "head"]
)
def test_a_scaled_output_is_named(pair, image, path):
    replaced(pair[1], path, lambda y: y * 1.01)
    report = compare(*pair, (image,))
    assert report.verdict == "FAIL"
    assert not report
    assert [fault.path for fault in report.faults] == [path]
    assert "R " in report.first_fault.magnitude


def test_three_faults_are_all_named_in_order(pair, image):
    for path in ("head", "block.conv", "stem"):
        replaced(pair[1], path, lambda y: y * 1.01)
    faults = compare(*pair, (image,)).faults
    assert [fault.path for fault in faults] == ["stem", "block.conv", "head"]
    assert [fault.calls for fault in faults] == [1, 2, 1]


def test_wrong_glue_names_the_container(pair, image, monkeypatch):
    block = type(pair[1].block)

    def without_residual(self, x, scale=1.0):
        h = self.conv(self.act(self.norm(x))) * scale
        return h, {"mean": h.mean((1, 2)), "none": None}

    monkeypatch.setattr(block, "__call__", without_residual)
    report = compare(*pair, (image,))
    assert [fault.path for fault in report.faults] == ["block", "blocks.0"]


def test_a_wrong_shape_is_a_fault(pair, image):
    replaced(pair[1], "stem", lambda y: y[:, :, :-1])
    report = compare(*pair, (image,))
    assert report.first_fault.path == "stem"
    assert "shape (2, 7, 8, 8) instead of (2, 7, 9, 8)" in report.first_fault.evidence


def test_a_nan_is_a_fault(pair, image):
    replaced(pair[1], "block.conv", lambda y: y.at[0, 0, 0, 0].set(jnp.nan))
    report = compare(*pair, (image,))
    assert report.first_fault.path == "block.conv"
    assert report.table.nonfinite.max() >= 1
    table = report.table
    assert set(table[table.path == "block.conv"].grade) == {"severe"}
    downstream = table[table.path == "head"].iloc[0]  # right on the reference's inputs
    assert (downstream.grade, downstream.verdict) == ("perfect", "FAIL")
    assert downstream.nonfinite > 0


def test_a_jitted_port_gives_the_same_verdict(pair, image):
    replaced(pair[1], "block.conv", lambda y: y * 1.01)
    jitted = compare(*pair, (image,), nnx_method=nnx.jit(lambda model, x: model(x)))
    assert [fault.path for fault in jitted.faults] == ["block.conv"]
    assert jitted.coverage.complete


def test_a_named_method(pair, image):
    report = compare(*pair, (image,), torch_method="features", nnx_method="features")
    assert report.holds
    assert set(report.table.case) == {"features"}
    idle = [path for path, why in report.coverage.declared.items() if "neither side" in why]
    assert idle == ["blocks.0.norm", "blocks.0.conv", "head"]
    assert report.verdict == "WARN"  # what did not run was not compared
    assert "3 modules were called on neither side" in report.notes[0]


def test_rename(pair, image):
    port = renamed(pair[1], stem="first")
    report = compare(pair[0], port, (image,))
    assert report.verdict == "PASS"
    assert compare(pair[0], port, (image,), rename={"stem": "first"}).verdict == "PASS"
    row = report.table[report.table.path == "stem"].iloc[0]
    assert row.nnx_path == "first"


def test_a_leaf_that_the_port_lacks_is_a_warning_unless_ignored(pair, image):
    replaced(pair[1], "block", lambda y: (y[0], {}))
    assert compare(*pair, (image,)).verdict == "PASS"  # inside, nothing hangs on it
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 6)).astype(np.float32)
    blocks = pair[0].block, pair[1].block
    report = compare(*blocks, (x,))
    assert report.verdict == "WARN"
    assert set(report.table[report.table.leaf == "1.mean"].verdict) == {"UNKNOWN"}
    assert compare(*blocks, (x,), ignore=["<root>#1.mean"]).verdict == "PASS"


def test_explicit_arguments_are_checked(pair, image):
    moved = np.ascontiguousarray(np.moveaxis(image, 1, -1))
    assert compare(*pair, (image,), nnx_args=(moved,))
    assert compare(*pair, (torch.from_numpy(image),), nnx_args=(jnp.asarray(moved),))
    with pytest.raises(InputError, match="nnx_args are not torch_args after layout: argument 'x'"):
        compare(*pair, (image,), nnx_args=(moved + 1,))
    with pytest.raises(InputError, match="has shape"):
        compare(*pair, (image,), nnx_args=(moved[:1],))


def test_keyword_arguments(pair, image):
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 6)).astype(np.float32)
    report = compare(pair[0].block, pair[1].block, (x,), torch_kwargs={"scale": 0.25})
    assert report.verdict == "PASS"


def test_options_are_checked(pair, image):
    with pytest.raises(InputError, match="nnx_method 3: expected a name or a callable"):
        compare(*pair, (image,), nnx_method=3)
    with pytest.raises(InputError, match="layout"):
        compare(*pair, (image,), layout={"*": "nhwc"})


def test_a_layout_glob_that_matches_nothing(pair, image):
    with pytest.raises(InputError, match=r"layout: 'stme#x' matches no module .*'stem'"):
        compare(*pair, (image,), layout={"stme#x": "as_is"})


def test_the_values_tell_a_layout_that_the_shape_does_not(pair):
    reference = torch_of(lambda _, x: 2 * x)

    port = nnx_of(lambda _, x: 2 * x)

    cube = np.random.default_rng(0).standard_normal((2, 4, 4, 4)).astype(np.float32)
    report = compare(reference, port, (cube,), layout={"#x": "channels_first"})
    assert report.verdict == "PASS"
    assert compare(reference, port, (cube,), layout={"*": "channels_first"}).verdict == "PASS"
    wrong = nnx_of(lambda _, x: 2 * x.swapaxes(1, 2))  # no layout
    assert compare(reference, wrong, (cube,)).verdict == "FAIL"


def test_tokens_keep_their_layout():
    """(B, L, D) through a Linear: nothing is moved."""
    linear = torch.nn.Linear(6, 4)
    port = ported(linear)
    x = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
    assert compare(linear, port, (x,)).verdict == "PASS"


VECTOR = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def test_a_zero_reference_does_not_hide_an_error():
    reference = torch_of(lambda _, x: x * 0)
    report = compare(reference, nnx_of(lambda _, x: x + 5), (VECTOR,))
    assert report.verdict == "FAIL"
    assert report.first_fault.path == ""
    assert compare(reference, nnx_of(lambda _, x: x * 0), (VECTOR,)).verdict == "PASS"


def test_none_beside_the_array_does_not_hide_it():
    reference = torch_of(lambda _, x: (torch.relu(x), None))
    assert compare(reference, Relu(), (VECTOR,)).verdict == "PASS"
    report = compare(reference, nnx_of(lambda _, x: 7 * x), (VECTOR,))
    assert report.verdict == "FAIL"


def test_one_sided_outputs_alone_are_nothing_compared():
    assert compare(torch_of(lambda _, x: x), nnx_of(lambda _, x: None), (VECTOR,)).verdict == "FAIL"


def test_nan_everywhere_is_not_equality():
    report = compare(
        torch_of(lambda _, x: x * float("nan")), nnx_of(lambda _, x: x * jnp.nan), (VECTOR,)
    )
    assert report.verdict == "UNKNOWN"
    assert not report


def test_plain_arguments_must_agree(pair):
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 6)).astype(np.float32)
    moved = np.moveaxis(x, 1, -1)
    with pytest.raises(InputError, match=r"'scale' has 3\.0 for 2\.0"):
        compare(pair[0].block, pair[1].block, (x, 2.0), nnx_args=(moved, 3.0))


def test_an_ambiguous_input_does_not_make_the_next_module_guilty():
    reference = torch_of(
        lambda self, x: self.head(self.up(x)),
        up=torch_of(lambda _, x: x * 1.0),
        head=torch_of(lambda _, x: x.mean((2, 3))),
    )

    port = nnx_of(
        lambda self, x: self.head(self.up(x)),
        up=nnx_of(lambda _, x: x * 1.01),
        head=nnx_of(lambda _, x: x.mean((1, 2))),
    )

    cube = np.random.default_rng(0).standard_normal((2, 4, 4, 4)).astype(np.float32)
    report = compare(reference, port, (cube,), nnx_args=(np.moveaxis(cube, 1, -1),))
    assert "head" not in [fault.path for fault in report.faults]
    sure = compare(reference, port, (cube,), layout={"*": "channels_first"})
    assert [fault.path for fault in sure.faults] == ["up"]


def test_bfloat16_models_are_measured():
    reference = torch.nn.Linear(6, 4).bfloat16()
    port = ported(reference, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    report = compare(
        reference, port, (x,), nnx_args=(jnp.asarray(x.float().numpy(), jnp.bfloat16),)
    )
    assert report.verdict in ("PASS", "WARN")
    assert np.isfinite(report.table.R.iloc[0])


VECTORS = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


def torch_linear(drop=0.0):
    return torch_of(
        lambda self, x: self.norm(self.drop(self.linear(x))),
        linear=torch.nn.Linear(6, 6),
        drop=torch.nn.Dropout(drop),
        norm=torch.nn.BatchNorm1d(6),
    )


class NnxLinear(nnx.Module):
    """The same without dropout, and with the norm's and the activation's code inside."""

    def __init__(self, reference, factor=1.0):
        self.linear = ported(reference.linear)
        self.norm = nnx.BatchNorm(6, epsilon=1e-5, use_running_average=True, rngs=nnx.Rngs(0))
        self.factor = factor

    def __call__(self, x):
        return self.norm(self.linear(x)) * self.factor


def test_a_random_reference_is_no_reference():
    reference = torch_linear(drop=0.3)  # a new module is in train mode
    report = compare(reference, NnxLinear(reference), (VECTORS,))
    assert not report
    assert [row.path for row in report.rows if "call .eval()" in row.reason] == [""]
    assert any("train mode: drop, norm" in note for note in report.notes)
    # what the port itself gets wrong is found all the same
    report = compare(reference, NnxLinear(reference, 1.5), (VECTORS,))
    assert "" in [fault.path for fault in report.faults]
    reference.eval()
    assert compare(reference, NnxLinear(reference), (VECTORS,)).faults == ()


def test_a_seed_gives_the_same_report_again():
    reference = torch_linear(drop=0.3)

    class Dropping(NnxLinear):
        def __init__(self, reference):
            super().__init__(reference)
            self.drop = nnx.Dropout(0.3, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(self.drop(self.linear(x)))

    port = Dropping(reference)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (
        parity.compare(reference, port, (VECTORS,), seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.environment["seed"] == 3
    assert first.table.equals(again.table)
    assert first.faults == again.faults
    assert first.verdict == "FAIL"
    assert not first.table.mae.equals(other.table.mae)


def test_both_models_are_left_in_their_state():
    class Counting(NnxLinear):
        def __init__(self, reference):
            super().__init__(reference)
            self.calls = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.calls[...] = self.calls[...] + 1
            return super().__call__(x)

    reference = torch_linear()
    port = Counting(reference)
    before = {name: value.clone() for name, value in reference.named_buffers()}
    compare(reference, port, (VECTORS,))
    assert all(torch.equal(value, before[name]) for name, value in reference.named_buffers())
    assert float(port.calls[...]) == 0


def test_inputs_that_hide_mistakes_are_said():
    reference = torch_of(lambda _, x: torch.tanh(x))

    port = nnx_of(lambda _, x: jnp.tanh(2 * x))

    zeros = compare(reference, port, (np.zeros((3, 4), np.float32),))
    assert zeros.verdict == "WARN"
    assert zeros.notes == ("input 'x' is 0 everywhere: that hides mistakes",)
    broken = VECTORS.copy()
    broken[0, 0] = np.nan
    assert "1 entries that are not finite" in compare(reference, port, (broken,)).notes[0]


def test_integers_of_64_bits_are_jax_s_of_32():

    def make_port(reference):
        return nnx_of(lambda self, ids: self.embed(ids), embed=ported(reference.embed))

    reference = torch_of(lambda self, ids: self.embed(ids), embed=torch.nn.Embedding(11, 6))
    ids = np.arange(8).reshape(2, 4)
    assert ids.dtype == np.int64
    assert compare(reference, make_port(reference), (ids,)).verdict == "PASS"
    wrong = compare(reference, make_port(reference), (ids,), nnx_args=(ids,))
    assert wrong.verdict == "PASS"
    with pytest.raises(InputError, match="other values"):
        compare(reference, make_port(reference), (ids,), nnx_args=(ids + 1,))


def test_a_module_that_one_side_has_as_a_function():

    def make_port(act):
        linear = ported(reference.linear)
        return nnx_of(lambda self, x: self.act_function(self.linear(x)), linear=linear,
                      act_function=act)  # fmt: skip

    reference = torch_of(
        lambda self, x: self.act(self.linear(x)), linear=torch.nn.Linear(6, 6), act=torch.nn.SiLU()
    )
    report = compare(reference, make_port(nnx.silu), (VECTORS,))
    assert report.verdict == "PASS"
    assert "does not call it" in report.coverage.inlined["act"]
    report = compare(reference, make_port(nnx.gelu), (VECTORS,))
    assert [(fault.path, fault.cause) for fault in report.faults] == [("", "activation")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nnx_module": lambda x: x}, "expected a torch.nn.Module and an nnx.Module"),
        (
            {"torch_args": VECTORS},
            "torch_args: expected a tuple of arguments, found a bare ndarray",
        ),
        (
            {"torch_args": (jnp.asarray(VECTORS),)},
            "torch_args: found an array of JAX",
        ),
        ({"ignore": "a"}, "ignore: expected a sequence, found the string 'a'"),
        ({"torch_method": "encode"}, "torch_method: Net has no method 'encode'"),
    ],
)
def test_misuse_is_explained(change, message):
    reference = torch_linear()
    options = {"torch_module": reference, "nnx_module": NnxLinear(reference),
               "torch_args": (VECTORS,)}  # fmt: skip
    with pytest.raises(InputError, match=message):
        compare(**{**options, **change})


def test_attention_whose_projection_is_never_called():
    reference = torch_of(
        lambda self, x: self.attention(x, x, x, need_weights=False)[0],
        attention=torch.nn.MultiheadAttention(6, 2, batch_first=True),
    )

    def attend(self, x):
        q, k, v = jnp.split(x @ self.weight[...] + self.bias[...].reshape(1, 1, -1), 3, -1)
        q, k, v = (a.reshape(*a.shape[:2], 2, 3) for a in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nnx.softmax(scores), v)
        return self.out_proj(mixed.reshape(x.shape))

    def make_port(scale):
        held = reference.attention
        attention = nnx_of(
            attend,
            weight=nnx.Param(jnp.asarray(held.in_proj_weight.detach().numpy().T)),
            bias=nnx.Param(jnp.asarray(held.in_proj_bias.detach().numpy())),
            out_proj=ported(held.out_proj),
            scale=scale,
        )
        return nnx_of(lambda self, x: self.attention(x), attention=attention)

    reference.eval()
    x = np.random.default_rng(6).standard_normal((2, 5, 6)).astype(np.float32)
    right = compare(reference, make_port(3**-0.5), (x,), layout={"*": "as_is"})
    assert right.faults == ()
    assert "attention.out_proj" in right.coverage.inlined
    assert right.verdict == "PASS"
    wrong = compare(reference, make_port(1.0), (x,), layout={"*": "as_is"})
    assert [fault.path for fault in wrong.faults] == ["attention"]


def test_a_renamed_module_that_the_reference_reads_and_does_not_call():
    """`nn.MultiheadAttention` hands the weights of `out_proj` to a function."""

    linear = torch.nn.functional.linear
    reference = torch_of(
        lambda self, x: linear(x, self.out_proj.weight, self.out_proj.bias),
        out_proj=torch.nn.Linear(4, 4),
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = compare(
        reference,
        nnx_of(lambda self, x: self.out(x), out=ported(reference.out_proj)),
        (x,),
        rename={"out_proj": "out"},
    )
    assert report.verdict == "PASS"
    assert list(report.coverage.inlined) == ["out_proj"]


@pytest.mark.parametrize("broken", [True, False])
def test_what_is_not_finite_before_a_mistake_does_not_hide_it(broken):
    around = torch_of(lambda self, x: self.inner(2 * x), inner=torch.nn.Linear(4, 4))

    def chained(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    reference = torch.nn.Sequential(torch.nn.Linear(4, 4), around)
    inner = nnx_of(
        lambda self, x: self.inner(self.factor * x),
        inner=ported(reference[1].inner),
        factor=1 if broken else 2,
    )
    port = nnx_of(chained, layers=nnx.List([ported(reference[0]), inner]))
    port.layers[0].kernel[0, 0] = jnp.nan
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    report = compare(reference, port, (x,), rename={"*": "layers.*"})
    assert [fault.path for fault in report.faults] == ["0", "1"][: 1 + broken]


def test_a_port_that_raises_on_both_layouts_says_both():
    def refuse(self, x):
        raise ValueError(f"no {x.shape}")

    image = np.zeros((1, 3, 5, 4), np.float32)
    with pytest.raises(ValueError, match=r"no \(1, 5, 4, 3\)") as caught:
        compare(torch.nn.Conv2d(3, 3, 1).eval(), nnx_of(refuse), (image,))
    assert any("ValueError: no (1, 3, 5, 4)" in note for note in caught.value.__notes__)
