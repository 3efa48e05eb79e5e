"""Products as other hardware makes them: which are rounded, how, and what the report says."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import jsonschema
import ml_dtypes
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flax import nnx
from jax import lax

import parity
from parity import InputError
from parity.cli import cli
from parity.extras import emulation as emulate
from parity.host import precision as probe
from parity.options.emulate import check_emulate
from parity.report.as_json import as_json
from parity.report.markdown import as_markdown
from tests.nets import ported, torch_of
from tests.ports import nnx_of
from tests.reports import SCHEMA, compare

LHS, RHS = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)


def bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def tf32(x):
    bits = x.view(np.uint32)
    bits = bits + 0xFFF + ((bits >> 13) & 1)  # to nearest, ties to even
    return (bits & ~np.uint32(0x1FFF)).view(np.float32).astype(np.float64)


def three_passes(a, b):
    x, y = bfloat16(a), bfloat16(b)
    return x @ y + x @ bfloat16(b - y) + bfloat16(a - x) @ y


EXPECTED = {
    "bfloat16": lambda a, b: bfloat16(a) @ bfloat16(b),
    "TF32": lambda a, b: tf32(a) @ tf32(b),
    "bfloat16 x3": three_passes,
    "": lambda a, b: a.astype(np.float64) @ b.astype(np.float64),
}


ROUNDINGS = 8 * 2.0**-24 * (np.abs(LHS).astype(np.float64) @ np.abs(RHS))
"""The most that a sum of six products in float32 can be off, one of three such sums too."""


def off(product, name):
    """The largest distance from what is expected, in units of what rounding can make of it."""
    return (np.abs(np.asarray(product, np.float64) - EXPECTED[name](LHS, RHS)) / ROUNDINGS).max()


@pytest.mark.parametrize(
    ("mode", "default", "high", "highest", "algorithm"),
    [
        ("tpu-default", "bfloat16", "bfloat16 x3", "", ""),
        ("tf32", "TF32", "TF32", "", ""),
        ("bf16", "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_what_is_rounded_follows_from_what_is_asked_for(mode, default, high, highest, algorithm):
    with emulate.emulated(mode):
        cases = [
            (None, default),
            ("default", default),
            ("high", high),
            (("default", "high"), high),  # the more exact of the two
            ("highest", highest),
            (lax.DotAlgorithmPreset.F32_F32_F32, algorithm),
        ]
        for precision, name in cases:
            product = jnp.matmul(LHS, RHS, precision=precision)
            assert off(product, name) <= 1, (precision, name)
            for other in EXPECTED.keys() - {name}:
                assert off(product, other) > 1, (precision, other)
        with jax.default_matmul_precision("highest"):
            product = jnp.matmul(LHS, RHS)
        assert off(product, highest) <= 1


def per_platform(x):
    return lax.platform_dependent(
        x, cpu=lambda x: x + 1, tpu=lambda x: x + 2, cuda=lambda x: x + 3, default=lambda x: x + 4
    )


@pytest.mark.parametrize(("mode", "added"), [("tpu-default", 2), ("tf32", 3), ("bf16", 2)])
def test_code_that_depends_on_the_platform_is_that_of_the_hardware(mode, added):
    compiled = jax.jit(per_platform)
    x = jnp.zeros(2)
    assert compiled(x)[0] == per_platform(x)[0] == 1
    with emulate.emulated(mode):
        assert compiled(x)[0] == per_platform(x)[0] == added
        others = lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x + 4)
        assert others[0] == 4
        # no branch but one that runs here
        assert lax.platform_dependent(x, cpu=lambda x: x + 1)[0] == 1
    assert compiled(x)[0] == per_platform(x)[0] == 1


def test_only_float32_is_rounded():
    with emulate.emulated("bf16"):
        exact = np.arange(36, dtype=np.int32).reshape(6, 6) * 1001
        assert np.array_equal(jnp.matmul(exact, exact), exact @ exact)
        product = jnp.matmul(LHS + 1j * RHS, RHS + 0j)
        wanted = bfloat16(LHS) @ bfloat16(RHS) + 1j * (bfloat16(RHS) @ bfloat16(RHS))
        assert np.abs(np.asarray(product) - wanted).max() < 1e-5
    with emulate.emulated("tpu-default"):
        product = jnp.matmul(np.full((6, 6), np.inf, np.float32), np.abs(RHS), precision="high")
        assert jnp.isposinf(product).all()


X, W = jnp.asarray(LHS), jnp.asarray(RHS)


@jax.custom_jvp
def double(x):
    return x @ W


double.defjvp(lambda given, tangents: (given[0] @ W, tangents[0] @ W))


def scanned(x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ W), None), x, None, length=3)[0]


CONV = nnx.Conv(6, 6, (3,), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.einsum("ij,jk->ik", x, W),
        jax.jit(lambda x: x @ W),
        jax.jit(scanned),
        jax.jit(jax.checkpoint(lambda x: jnp.tanh(x @ W))),
        jax.jit(double),
        jax.jit(jax.vmap(lambda row: row @ W)),
        lambda x: CONV(x[None]),
        lambda x: nnx.jit(lambda m, x: m(x))(CONV, x[None]),
    ],
    ids=["eager", "jit", "scan", "remat", "custom_jvp", "vmap", "nnx", "nnx.jit"],
)
def test_programs_compiled_before_do_not_hide_it_and_none_is_left_behind(function):
    before = np.asarray(function(X))
    with emulate.emulated("bf16"):
        rounded = np.asarray(function(X))
        with jax.disable_jit():
            one_by_one = np.asarray(function(X))
    added = np.abs(rounded - before)
    assert 1e-4 < added.max() < 0.1
    # next to a tie a single number may be rounded to bfloat16 the other way
    assert np.abs(one_by_one - rounded).mean() < added.mean() / 10
    np.testing.assert_array_equal(function(X), before)


def test_it_ends_whatever_happens():
    with pytest.raises(RuntimeError, match="mine"), emulate.emulated("bf16"):
        raise RuntimeError("mine")
    assert "bind" not in vars(lax.dot_general_p)
    with pytest.raises(InputError, match="expected one of tpu-default, tf32, bf16"):
        check_emulate("fp8")


def test_the_probe_tells_the_effective_precision(monkeypatch):
    assert (probe.of_jax(), probe.of_torch()) == ("float32", "float32")
    for mode, name in (("tpu-default", "bfloat16 passes"), ("tf32", "TF32")):
        with emulate.emulated(mode):
            assert probe.of_jax() == name
    with emulate.emulated("tpu-default"), jax.default_matmul_precision("high"):
        assert probe.of_jax() == "3 bfloat16 passes"
    product = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: product(a.bfloat16(), b.bfloat16()).float())
    assert probe.of_torch() == "bfloat16 passes"


def make_mix(mix, precision=None, factor=1.0):
    """The port: products that ask for this precision, and a result that is off by a factor."""

    def call(self, x):
        h = self.first(x)
        product = partial(jnp.matmul, precision=precision)
        return self.last(self.act(product(product(h, h.T), h))) * factor

    layers = {name: ported(getattr(mix, name), precision=precision) for name in ("first", "last")}
    return nnx_of(call, act=nnx_of(lambda _, x: jnp.tanh(x)), **layers)


@pytest.fixture(scope="module")
def mix():
    torch.manual_seed(0)

    def forward(self, x):
        h = self.first(x)
        return self.last(self.act(h @ h.mT @ h))  # a product of its own before one inside a layer

    first, last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    return torch_of(forward, first=first, last=last, act=torch.nn.Tanh())


@pytest.fixture(scope="module")
def emulated(mix):
    return compare(mix, make_mix(mix), (LHS,), emulate="tpu-default")


def test_what_the_hardware_adds_is_no_fault_of_the_port(mix, emulated):
    plain = compare(mix, make_mix(mix), (LHS,))
    assert emulated.verdict == plain.verdict == "PASS"
    assert emulated.table.equals(plain.table)
    assert plain.emulations == ()
    (one,) = emulated.emulations
    added, own = one.outputs[""]
    assert 1e-4 < added < 5e-2
    assert own < added / 10
    assert (one.lossy, one.calls) == (3, 4)  # the activation loses nothing
    lost = {(loss.path, loss.to): loss.rel_l2 for loss in one.losses}
    assert set(lost) == {("first", ""), ("last", ""), ("", "act")}
    assert all(1e-4 < loss < 5e-2 for loss in lost.values())


def test_a_fault_remains_one_and_what_is_added_does_not_count_it(mix, emulated):
    wrong = compare(mix, make_mix(mix, factor=1.5), (LHS,), emulate="tpu-default")
    assert [fault.path for fault in wrong.faults] == [""]
    (one,), (right,) = wrong.emulations, emulated.emulations
    assert one.outputs[""][1] == pytest.approx(0.5, rel=1e-3)
    assert one.outputs[""][0] == pytest.approx(right.outputs[""][0], rel=1e-3)
    assert max(loss.rel_l2 for loss in one.losses) < 5e-2


def test_a_port_that_asks_for_more_is_left_alone(mix):
    port = make_mix(mix, precision="highest")
    report = compare(mix, port, (LHS,), emulate="tpu-default")
    (one,) = report.emulations
    assert (one.outputs[""][0], one.losses, one.lossy) == (0.0, (), 0)
    assert "precision tpu-default changes nothing in __call__: " in as_markdown(report)


def test_the_report_says_it(emulated):
    jsonschema.validate(json.loads(as_json(emulated)), SCHEMA)
    text = as_markdown(emulated)
    assert "## Precision" in text
    assert "- precision tpu-default adds rel_l2 " in text
    assert "at the output of __call__; the port itself " in text
    assert "takes 3 of 4 calls of __call__ out of the rounding of float32" in text
    assert "`<root>` call 0 `input` passed to `act`" in text
    assert emulated.environment["jax_effective_precision"] == "float32"


def test_an_unknown_mode_is_refused(mix):
    with pytest.raises(InputError, match="emulate 'fp8'"):
        parity.compare(mix, make_mix(mix), (LHS,), emulate="fp8")


def test_bfloat16_products_make_an_mae_of_1e_3_in_a_convolution(small_torch, small_nnx):
    """What an earlier port measured of its first convolution on a TPU was 8.8e-4."""
    frames = np.random.default_rng(0).standard_normal((1, 3, 3, 16, 16)).astype(np.float32)
    with torch.no_grad():
        wanted = small_torch.encoder.conv_in(torch.from_numpy(frames))[0].movedim(1, -1).numpy()
    given = jnp.asarray(np.moveaxis(frames, 1, -1))
    plain = np.asarray(small_nnx.encoder.conv_in(given)[0])
    assert np.abs(plain - wanted).mean() < 1e-5
    with emulate.emulated("bf16"):
        rounded = np.asarray(small_nnx.encoder.conv_in(given)[0])
    assert 0.9e-3 < np.abs(rounded - wanted).mean() < 1.2e-3
    with emulate.emulated("tpu-default"):  # the port asks for HIGHEST
        exact = np.asarray(small_nnx.encoder.conv_in(given)[0])
    # not bit for bit: a TPU convolves in three dimensions at once, a CPU in two
    assert np.abs(exact - wanted).mean() < 1e-5


CLIP = np.random.default_rng(0).uniform(-1, 1, (1, 3, 1, 8, 8)).astype(np.float32)
TINY = parity.Pair(
    name="tiny",
    make_torch=lambda options, seed: torch.nn.Conv3d(3, 4, 1),
    make_nnx=lambda options, reference: ported(reference),
    cases=lambda reference, options, seed: (parity.Case("conv/clip", (CLIP,)),),
    rungs=(parity.Rung("conv", ("Conv3d",), 1e-6),),
)


@pytest.mark.slow
def test_the_command_prints_the_precision_and_takes_the_options(tmp_path):
    words = ["run", f"{__name__}:TINY", "--emulate", "tf32", "--eager"]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "effective precision of float32 products: jax float32, torch float32" in done.stderr
    assert "precision tf32 adds rel_l2 " in done.stdout
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["emulations"][0]["mode"] == "tf32"
    assert 1e-5 < document["emulations"][0]["outputs"][""][0] < 1e-3
    quiet = [*words[:2], "--quiet", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, quiet)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "tiny: PASS\n", "")
    refused = CliRunner().invoke(cli, ["run", "--emulate", "fp8"])
    assert refused.exit_code == 2
