"""What is planned for a TPU, what is counted, and what the tables say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.experimental.compilation_cache import compilation_cache

from bench import tpu_aot
from bench.tpu_aot import Call, array_bytes, markdown, needs, operations, plan, programs
from jaxvae import AutoencoderKLCogVideoX
from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.pairs.cogvideox.ladder import SMALL

GIB = 2**30


@pytest.fixture(scope="module")
def vae():
    vae = AutoencoderKLCogVideoX(SMALL, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    vae.eval()
    return vae


def figures(**changes):
    return {"needs": 0, "memory": 31 * GIB, "given": 0, "returns": 0, "operations": 1e12} | changes


def test_programs_of_a_call(vae):
    side = 8 * SMALL.spatial_ratio
    first, following = programs(Call("cogvideox", "decode", 49, side, side), vae).items()
    assert first[0] == f"cogvideox decode first 3 of {side}x{side}"
    assert following[0] == f"cogvideox decode next 2 of {side}x{side}"
    assert first[1][1].shape == (1, 3, 8, 8, SMALL.latent_channels)
    assert first[1][2] is None
    assert following[1][2] is not None
    whole = programs(Call("cogvideox", "decode", 49, side, side, whole=True), vae)
    assert list(whole) == [f"cogvideox decode first 13 of {side}x{side}"]
    # and as it was for the next call, which is one of fewer frames than a chunk has
    few = programs(Call("cogvideox", "encode", 4, side, side), vae)
    assert list(few) == [f"cogvideox encode first 4 of {side}x{side}"]


def test_a_call_needs_its_neediest_chunk_and_what_lies_beside_it():
    call = Call("cogvideox", "decode", 49, 480, 720)
    # latent: 13 frames, 16 channels of 60x90; video: 49 frames, 3 channels; 2 bytes each
    beside = 2 * (13 * 16 * 60 * 90 + 49 * 3 * 480 * 720)
    assert array_bytes(call, CogVideoXVAEConfig()) == beside
    found = {"first": figures(needs=5), "next": figures(needs=7), "another": figures(needs=100)}
    assert needs({"programs": ["first", "next", "next"], "arrays": beside}, found) == 7 + beside


def test_operations_are_those_of_the_convolution_as_it_is_written():
    x, kernel = jnp.ones((1, 4, 9, 9, 32)), jnp.ones((3, 3, 3, 32, 64))

    def convolved(x):
        from jaxvae.layers.convolution import convolve

        return convolve(x, kernel, jnp.zeros(64))

    once = 2 * (2 * 7 * 7) * 27 * 32 * 64
    assert operations(jax.make_jaxpr(convolved)(x).jaxpr) == once

    def looped(x):
        return lax.map(lambda _: convolved(x), jnp.arange(5)), x[0, 0, 0] @ np.ones((32, 8))

    assert operations(jax.make_jaxpr(looped)(x).jaxpr) == 5 * once + 2 * 9 * 32 * 8


def test_tables_say_what_fits():
    call = {"model": "wan", "direction": "encode", "frames": 5, "height": 8, "width": 8}
    report = {
        "command": "c",
        "commit": "c",
        "versions": {"jax": "1"},
        "topology": "t",
        "found": {
            "first": figures(needs=GIB, given=GIB // 2),
            "next": figures(needs=3 * GIB, returns=2 * GIB, operations=2e12),
            "whole": figures(needs=45 * GIB),
        },
        "calls": [
            call | {"whole": False, "arrays": 0, "programs": ["first", "next"]},
            call | {"whole": True, "arrays": 0, "programs": ["whole"]},
        ],
    }
    lines = markdown(report).splitlines()
    assert "| wan encode | 5 | 8x8 | 2 | 3.0 | yes | 3.0 |" in lines
    assert "| wan encode, one chunk | 5 | 8x8 | 1 | 45.0 | no | 1.0 |" in lines
    assert "| next | 3.00 | 0.00 | 2.00 | 2.0 |" in lines


@pytest.fixture
def no_cache(monkeypatch):
    """As in the command's process."""
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    compilation_cache.reset_cache()  # it remembers whether it is used
    yield
    jax.config.update(name, before)
    compilation_cache.reset_cache()


@pytest.mark.slow
@pytest.mark.usefixtures("no_cache")
def test_a_program_needs_what_it_is_given_and_returns_and_more(vae):
    pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")
    side = 32 * SMALL.spatial_ratio
    call = Call("cogvideox", "decode", 8, side, side)
    (found,) = (plan(*program) for program in programs(call, vae).values())
    assert found["given"] + found["returns"] < found["needs"] < GIB
    assert found["memory"] == round(31.25 * GIB)


@pytest.mark.slow
@pytest.mark.usefixtures("no_cache")
def test_a_decode_of_768x1360_fits_the_chip():
    """The step of two latent frames, which took 45 GiB as whole convolutions."""
    pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")
    call = Call("cogvideox", "decode", 16, 768, 1360)
    vae = AutoencoderKLCogVideoX(CogVideoXVAEConfig(), rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    vae.eval()
    found = {name: plan(*program) for name, program in programs(call, vae).items()}
    row = {"programs": list(found), "arrays": array_bytes(call, vae.config)}
    assert needs(row, found) < 26 * GIB
    assert found[row["programs"][0]]["memory"] < tpu_aot.BALLAST * GIB
