"""Right ports of real references, in the styles that people use, without any configuration."""

import contextlib

import jax
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("transformers")

import parity
from tests.ports.both import NAMES, made, outputs
from tests.ports.planted import drawn, misplaced

QUICK = ("clip_text", "gpt2")


@pytest.fixture(autouse=True)
def _as_people_write():
    with jax.numpy_rank_promotion("allow"):
        yield


def each(*names):
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_port_is_right(name):
    for reference, port in outputs(name):
        np.testing.assert_allclose(port, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", each(*NAMES))
def test_it_passes_without_a_word(name):
    reference, port, args = made(name)
    report = parity.compare(reference, port, args, check_compiled=name not in QUICK)
    assert report.verdict == "PASS", (report.notes, report.faults)
    assert report.coverage.matched_parameters == report.coverage.parameters


@contextlib.contextmanager
def replaced(owner, name, make):
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    yield
    setattr(owner, name, before)


def exact_gelu(port):
    return replaced(nnx, "gelu", lambda own: lambda x, approximate: own(x, False))


def doubled_scores(port):
    attention = "dot_product_attention"
    return replaced(
        jax.nn, attention, lambda own: lambda q, *rest, **more: own(2 * q, *rest, **more)
    )


def other_epsilon(port):
    return replaced(port.blocks[1].ln, "epsilon", lambda _: 1e-3)


def tripled_bias(port):
    port.down.conv.bias[...] *= 3
    return contextlib.nullcontext()


def no_mask(port):
    return replaced(jax.numpy, "tril", lambda _: lambda x: x)


GPT2, CLIP = (
    [f"{at}.{i}" for i in range(2)] for at in ("transformer.h", "text_model.encoder.layers")
)


@pytest.mark.parametrize(
    ("name", "plant", "paths", "segment"),
    [
        ("gpt2", exact_gelu, GPT2, "between `mlp.c_fc` and the input of `mlp.c_proj`"),
        ("gpt2", doubled_scores, GPT2, "between `ln_1` and the input of `attn.c_proj`"),
        ("convnext", other_epsilon, ["encoder.stages.0.layers.1.layernorm"], ""),
        ("convnext", tripled_bias, ["encoder.stages.1.downsampling_layer.1"], ""),
        (
            "clip_text",
            no_mask,
            [f"{path}.self_attn" for path in CLIP],
            "between `v_proj` and the input of `out_proj`",
        ),
    ],
)
def test_a_mistake_in_it_has_its_place(name, plant, paths, segment):
    reference, port, args = made(name)
    with plant(port):
        report = parity.compare(reference, port, args, check_compiled=False)
    assert report.verdict == "FAIL"
    found = [(fault.path, fault.segment) for fault in report.faults]
    assert found == [(path, segment) for path in paths]


def thrice(*names):
    found = []
    for name, at in ((name, at) for name in names for at in range(3)):
        marks = [] if name == min(QUICK) and not at else [pytest.mark.slow]
        found.append(pytest.param(name, at, marks=marks))
    return found


@pytest.mark.parametrize(("name", "at"), thrice(*NAMES))
def test_a_drawn_mistake_is_one_fault_of_its_module(name, at):
    mistake = drawn(name, seed=0)[at]
    report = parity.compare(*mistake.make(), check_compiled=False)
    assert not misplaced(report, mistake), mistake
