"""What others build on: public names, signatures, docstrings, shapes and types of results."""

import importlib
import inspect
import pkgutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxvae
from jaxvae import CogVideoXVAEConfig

NAMES = {
    "AutoencoderKL",
    "AutoencoderKLCogVideoX",
    "AutoencoderKLWan",
    "CogVideoXVAEConfig",
    "ConfigError",
    "DiagonalGaussian",
    "KLVAEConfig",
    "WanVAEConfig",
    "WeightsError",
    "from_pretrained",
    "load_checkpoint",
    "save_checkpoint",
    "scale_latents",
    "unscale_latents",
}

# Parameters in their order; `*` stands before those that go by name alone.
METHODS = {
    "__init__": "config * rngs dtype precision param_dtype",
    "__call__": "sample sample_posterior key noise * compiled",
    "encode": "x * compiled",
    "decode": "z * compiled",
    "encode_stream": "frames total",
    "decode_stream": "z * single_latents",
    "compile_ahead": "video latent",
    "step_programs": "video latent",
    "from_pretrained": (
        "path_or_repo subfolder dtype precision revision local_files_only param_dtype"
    ),
    "save_pretrained": "folder max_shard_size",
    "enable_tiling": (
        "tile_sample_min_height tile_sample_min_width"
        " tile_overlap_factor_height tile_overlap_factor_width"
    ),
    "disable_tiling": "",
    "enable_slicing": "",
    "disable_slicing": "",
    "enable_sharding": "mesh * batch height width time tiles",
    "disable_sharding": "",
    "enable_gradient_checkpointing": "",
    "disable_gradient_checkpointing": "",
}

IMAGES = METHODS | {
    "decode_stream": "z",
    "enable_tiling": "tile_sample_min_size tile_overlap_factor",
    "fuse_qkv_projections": "",
    "unfuse_qkv_projections": "",
}

WAN = METHODS | {
    "decode_stream": "z",
    "enable_tiling": "tile_sample_min_height tile_sample_min_width"
    " tile_sample_stride_height tile_sample_stride_width",
}

POSTERIOR = {
    "sample": "key noise",
    "mode": "",
    "kl": "other",
    "nll": "x",
}


def parameters(function):
    """The names of a function's parameters, without `self`."""
    words, by_name = [], False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not by_name:
            words.append("*")
            by_name = True
        if name != "self":
            words.append(name)
    return " ".join(words)


def test_public_names():
    assert set(jaxvae.__all__) == NAMES
    assert all(hasattr(jaxvae, name) for name in NAMES)
    assert jaxvae.__version__


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (jaxvae.AutoencoderKLCogVideoX, METHODS),
        (jaxvae.AutoencoderKL, IMAGES),
        (jaxvae.AutoencoderKLWan, WAN),
        (jaxvae.DiagonalGaussian, POSTERIOR),
    ],
)
def test_signatures(cls, expected):
    for name, names in expected.items():
        assert parameters(getattr(cls, name)) == names, name
        for parameter in inspect.signature(getattr(cls, name)).parameters.values():
            known = parameter.annotation is not parameter.empty
            assert known or parameter.name == "self", (name, parameter)


def public():
    """Every public class and function that a module of the package defines."""
    for info in pkgutil.walk_packages(jaxvae.__path__, "jaxvae."):
        if info.name.endswith(".mistakes"):  # what the self-test breaks on purpose
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            made_here = getattr(value, "__module__", None) == module.__name__
            if made_here and not name.startswith("_") and callable(value):
                yield pytest.param(module, value, id=f"{info.name}.{name}")


@pytest.mark.parametrize(("module", "value"), list(public()))
def test_docstrings(module, value):
    """A docstring, and the source of what it does in it or its module's, if a layer."""
    assert inspect.getdoc(value)
    text = f"{module.__doc__} {inspect.getdoc(value)}"
    if not inspect.isclass(value):
        assert inspect.get_annotations(inspect.unwrap(value))
    elif value is jaxvae.layers.scopes.Module:
        assert "Not in diffusers" in text
    elif issubclass(value, nnx.Module) or value in (jaxvae.DiagonalGaussian, CogVideoXVAEConfig):
        assert "Source: diffusers 0.42.1" in text or "Source: torch 2.13" in text
    if inspect.isclass(value):
        for name, member in vars(value).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                assert inspect.getdoc(member), name


class TestVariants(chex.TestCase):
    """The same shapes, types and values, compiled by the caller or not."""

    @pytest.fixture(autouse=True)
    def _given(self, bridge, objective):
        self.bridge, self.objective = bridge, objective

    @chex.variants(with_jit=True, without_jit=True)
    def test_encode(self):
        vae, x = self.objective.ours, self.bridge.normal(*self.objective.video)
        posterior = self.variant(lambda x: vae.encode(x))(x)
        latent = self.objective.latent
        chex.assert_shape([posterior.mean, posterior.logvar, posterior.std], latent)
        chex.assert_shape(posterior.parameters, (*latent[:-1], 2 * latent[-1]))
        chex.assert_shape(posterior.kl(), (1, latent[3]))
        chex.assert_type([posterior.mean, posterior.var, posterior.kl()], jnp.float32)
        chex.assert_tree_all_finite(posterior)
        assert self.bridge.error(posterior.parameters, vae.encode(x).parameters) < 5e-6


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_dtype_of_results_is_the_models(objective, dtype):
    vae = jax.tree.map(lambda leaf: leaf.astype(dtype), objective.ours)
    vae.dtype = jnp.dtype(dtype)
    video = jax.ShapeDtypeStruct((2, *objective.video[1:]), np.float32)
    posterior = jax.eval_shape(lambda x: vae.encode(x), video)
    output = jax.eval_shape(lambda z: vae.decode(z), jax.ShapeDtypeStruct((2, 3, 4, 6, 2), dtype))
    assert posterior.parameters.dtype == output.dtype == dtype
    assert posterior.parameters.shape == (2, *objective.latent[1:-1], 4)
    assert output.shape == (2, 5, 8, 12, 3)


def test_the_same_shapes_are_traced_once(objective):
    chex.clear_trace_counter()
    encode = jax.jit(chex.assert_max_traces(lambda vae, x: vae.encode(x).parameters, n=1))
    x = jax.ShapeDtypeStruct(objective.video, np.float32)
    for _ in range(2):
        encode.lower(objective.ours, x)
    with pytest.raises(AssertionError, match="is traced > 1 times"):
        encode.lower(objective.ours, jax.ShapeDtypeStruct((2, *objective.video[1:]), np.float32))
