"""Scaling against the expressions of diffusers' own pipelines, taken from their source."""

import ast
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxvae import CogVideoXVAEConfig, scale_latents, unscale_latents

CONFIG = CogVideoXVAEConfig(latent_channels=4, scaling_factor=0.7)
MOMENTS = {"latents_mean": (0.3, -0.2, 0.0, 1.7), "latents_std": (0.9, 1.3, 0.4, 2.1)}
DTYPES = ["float32", "bfloat16"]


COGVIDEO = "cogvideo/pipeline_cogvideox"
FLUX = "flux/pipeline_flux"
SDXL = "stable_diffusion_xl/pipeline_stable_diffusion_xl"


def statements(file, method, name):
    """The assignments in a pipeline's method that scale `name`, in the order of the source.

    The file is read, not imported: pipelines need more than what is installed.
    """
    path = Path(diffusers.__file__).parent / "pipelines" / f"{file}.py"
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == method
    ]
    found = [
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == name
        and "scaling_factor" in ast.unparse(node.value)
    ]
    return [ast.unparse(node.value) for node in sorted(found, key=lambda node: node.lineno)]


def evaluate(expression, latents, config, **names):
    """Run an expression of a pipeline on channel-first tensors; return it channel-last."""
    vae = SimpleNamespace(config=SimpleNamespace(**config.to_dict()))
    pipeline = SimpleNamespace(vae=vae, vae_scaling_factor_image=config.scaling_factor)
    tensor = latents.movedim(-1, 1)
    for name in ("latents", "image_latents", "init_latents"):
        names[name] = tensor
    return eval(expression, {"self": pipeline, "torch": torch} | names).movedim(1, -1)


def both(bridge, dtype):
    values = bridge.normal(2, 3, 4, 5, 4)
    return jnp.asarray(values, dtype), torch.from_numpy(values).to(getattr(torch, dtype))


def equal(ours, theirs):
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    return np.array_equal(np.asarray(ours, np.float32), theirs.float().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [0.7, 1.15258426])
def test_decoding_in_every_pipeline(bridge, dtype, factor):
    ours, theirs = both(bridge, dtype)
    for invert in (False, True):
        config = dataclasses.replace(CONFIG, scaling_factor=factor, invert_scale_latents=invert)
        for name in ("", "_image2video", "_video2video", "_fun_control"):
            (expression,) = statements(COGVIDEO + name, "decode_latents", "latents")
            reference = evaluate(expression, theirs, config)
            assert equal(unscale_latents(ours, config), reference)
            assert equal(jax.jit(lambda x, c=config: unscale_latents(x, c))(ours), reference)


@pytest.mark.parametrize("dtype", DTYPES)
def test_image_latents_both_ways(bridge, dtype):
    ours, theirs = both(bridge, dtype)
    straight, inverted = statements(COGVIDEO + "_image2video", "prepare_latents", "image_latents")
    assert equal(scale_latents(ours, CONFIG), evaluate(straight, theirs, CONFIG))
    config = dataclasses.replace(CONFIG, invert_scale_latents=True)
    assert equal(scale_latents(ours, config), evaluate(inverted, theirs, config))
    assert not equal(scale_latents(ours, config), evaluate(straight, theirs, config))


@pytest.mark.parametrize("dtype", DTYPES)
def test_video_latents(bridge, dtype):
    ours, theirs = both(bridge, dtype)
    (expression,) = statements(COGVIDEO + "_video2video", "prepare_latents", "init_latents")
    assert equal(scale_latents(ours, CONFIG), evaluate(expression, theirs, CONFIG))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_and_std_of_each_channel(bridge, dtype):
    ours, theirs = both(bridge, dtype)
    config = dataclasses.replace(CONFIG, **MOMENTS)
    moments = {
        name: torch.tensor(value).view(1, 4, 1, 1, 1).to(theirs.dtype)
        for name, value in MOMENTS.items()
    }
    expression, _ = statements(SDXL + "_img2img", "prepare_latents", "init_latents")
    reference = evaluate(expression, theirs, config, **moments)
    assert equal(scale_latents(ours, config), reference)
    assert equal(jax.jit(lambda x: scale_latents(x, config))(ours), reference)
    expression, plain = statements(SDXL, "__call__", "latents")
    assert equal(unscale_latents(ours, config), evaluate(expression, theirs, config, **moments))
    # One without the other counts for nothing, as there.
    assert plain == "latents / self.vae.config.scaling_factor"
    for name, value in MOMENTS.items():
        half = dataclasses.replace(CONFIG, **{name: value})
        assert np.array_equal(scale_latents(ours, half), scale_latents(ours, CONFIG))
        assert np.array_equal(unscale_latents(ours, half), unscale_latents(ours, CONFIG))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shift(bridge, dtype):
    ours, theirs = both(bridge, dtype)
    config = dataclasses.replace(CONFIG, shift_factor=0.1159)
    (expression,) = statements(FLUX + "_img2img", "_encode_vae_image", "image_latents")
    assert equal(scale_latents(ours, config), evaluate(expression, theirs, config))
    (expression,) = statements(FLUX, "__call__", "latents")
    reference = evaluate(expression, theirs, config)
    assert equal(unscale_latents(ours, config), reference)
    if dtype == "float32":
        # Inside of one program the sum is fused with the division before it or not, as XLA likes.
        fused = jax.jit(lambda x: unscale_latents(x, config))(ours)
        assert bridge.error(fused, reference.numpy()) < 2e-7


@pytest.mark.parametrize("changes", [{}, {"shift_factor": 0.4}, MOMENTS])
def test_one_undoes_the_other_unless_inverted(bridge, changes):
    latents = jnp.asarray(bridge.normal(1, 2, 3, 3, 4))
    config = dataclasses.replace(CONFIG, **changes)
    again = unscale_latents(scale_latents(latents, config), config)
    np.testing.assert_allclose(again, latents, rtol=1e-5, atol=1e-6)
    inverted = dataclasses.replace(config, invert_scale_latents=True)
    assert not np.allclose(unscale_latents(scale_latents(latents, inverted), inverted), latents)


def test_float64(bridge):
    with jax.enable_x64(True):
        latents = np.random.default_rng(0).standard_normal((1, 2, 3, 3, 4))
        scaled = scale_latents(jnp.asarray(latents), CONFIG)
        assert scaled.dtype == jnp.float64
        assert np.array_equal(scaled, 0.7 * latents)


def test_what_does_not_fit(bridge):
    latents = jnp.zeros((1, 4, 2, 2, 3))
    for function in (scale_latents, unscale_latents):
        with pytest.raises(ValueError, match=r"expected \(\.\.\., 4\), found shape .*are last"):
            function(latents, CONFIG)
        short = dataclasses.replace(CONFIG, latents_mean=(0.0,) * 4, latents_std=(1.0,) * 3)
        with pytest.raises(ValueError, match=r"latents_std: expected 4 numbers, .*found 3"):
            function(jnp.zeros((1, 2, 2, 2, 4)), short)
        double = dataclasses.replace(CONFIG, shift_factor=1.0, **MOMENTS)
        with pytest.raises(ValueError, match="found both"):
            function(jnp.zeros((1, 2, 2, 2, 4)), double)
