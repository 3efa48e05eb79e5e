"""Gradients of the CogVideoX port: right everywhere, and a mistake in one module of many."""

import jax
import numpy as np
import pytest

from jaxvae.pairs.cogvideox.ladder import DECLARED
from jaxvae.pairs.cogvideox.pair import PAIR
from jaxvae.pairs.port import decode_nnx, encode_nnx
from tests.reports import compare

pytestmark = pytest.mark.slow

VIDEO = np.random.default_rng(0).uniform(-1, 1, (1, 3, 9, 32, 32)).astype(np.float32)
LATENT = np.random.default_rng(0).standard_normal((1, 8, 3, 4, 4)).astype(np.float32)


def encoded(model, x):
    posterior = model.encode(x).latent_dist
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decoded(model, z):
    return model.decode(z).sample


CALLS = {
    "encode": (VIDEO, encoded, encode_nnx, ()),
    "decode": (LATENT, decoded, decode_nnx, tuple(DECLARED)),
}


def gradients(port, reference, call):
    array, torch_method, nnx_method, ignore = CALLS[call]
    return compare(
        reference, port, (array,), torch_method=torch_method, nnx_method=nnx_method, ignore=ignore,
        gradients=True)  # fmt: skip


def make():
    options = PAIR.resolved({"config": "small"})
    reference = PAIR.make_torch(options, 0)
    return reference, PAIR.make_nnx(options, reference)


@pytest.mark.parametrize("call", CALLS)
def test_every_gradient_is_as_accurate_as_pytorchs(call):
    reference, port = make()
    report = gradients(port, reference, call)
    assert {row.verdict for row in report.rows} == {"PASS"}
    assert not report.faults
    named = {f"{row.path}.{row.leaf[5:-1]}" for row in report.rows}
    own = {"encode": "encoder", "decode": "decoder"}[call]
    assert {name for name, _ in getattr(reference, own).named_parameters(own)} <= named


def changed(port, path, function):
    """The module at `path` with `function` of what it returns."""
    module = port
    for part in path.split("."):
        module = module[int(part)] if part.isdigit() else getattr(module, part)
    cls = type(module)

    def call(self, *args, **kwargs):
        return function(cls.__call__(self, *args, **kwargs))

    object.__setattr__(module, "__class__", type(cls.__name__, (cls,), {"__call__": call}))


def test_two_mistakes_among_many_modules():
    reference, port = make()
    paths = ["encoder.down_blocks.1.resnets.0.norm1", "encoder.mid_block.resnets.1.nonlinearity"]
    half = jax.custom_vjp(lambda x: x)
    half.defvjp(lambda x: (x, None), lambda _, g: (0.5 * g,))
    changed(port, paths[0], jax.lax.stop_gradient)
    changed(port, paths[1], half)
    report = gradients(port, reference, "encode")
    assert [fault.path for fault in report.faults] == paths[::-1]
    assert "0.5 times" in report.faults[0].evidence
    assert "zero everywhere" in report.faults[1].evidence
