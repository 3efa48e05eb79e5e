"""Module paths in compiled programs, and in a profile that a user takes."""

import re

import jax
import pytest
from flax import nnx

from jaxvae.models.cogvideox.blocks import DownBlock3D
from jaxvae.models.cogvideox.steps import decode_chunk
from jaxvae.run.steps import Coder


@pytest.fixture(scope="module")
def tiny(make_pair, objective):
    return make_pair(**objective.tiny).ours


def paths(module, prefix):
    """Of every module below that has parameters of its own, with slashes."""
    for path, child in nnx.iter_modules(module):
        if any(isinstance(value, nnx.Param) for value in vars(child).values()):
            yield "/".join([prefix, *map(str, path)])


def test_operations_of_a_compiled_program_have_the_paths_of_their_modules(tiny):
    latent = jax.ShapeDtypeStruct((1, 2, 2, 3, 2), "float32")
    coder = Coder(decode_chunk, (tiny.decoder, tiny.post_quant_conv))
    text = coder.lower(latent, None).compile().as_text()
    # what is a computation of its own has the path alone
    names = set(re.findall(r'op_name="(?:jit\(_compiled\)/)?([^"]*)"', text))
    expected = list(paths(tiny.decoder, "decoder"))
    assert "decoder/up_blocks/1/resnets/0/conv1/conv" in expected
    assert len(expected) == 55
    for path in expected:
        assert any(name.startswith(f"{path}/") for name in names), path


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_block_by_itself_and_under_checkpointing(bridge, checkpointed):
    block = DownBlock3D(2, 2, 0, num_layers=2, resnet_groups=1, **bridge.build())
    block.gradient_checkpointing = checkpointed
    step = jax.grad(lambda block, x: block(x)[0].sum(), allow_int=True)
    lowered = jax.jit(step).lower(block, jax.ShapeDtypeStruct((1, 2, 4, 4, 2), "float32"))
    text = lowered.as_text(debug_info=True)
    # JAX marks the outermost scope as differentiated, in brackets
    for path in ("resnets/0/conv1/conv/", "resnets/1/norm2/", "downsamplers/0/conv/"):
        assert path in text.replace(")", "")
    assert ("rematted" in text) == checkpointed  # it is what it says


def test_a_profile_of_encode_names_the_modules(tiny, bridge, tmp_path):
    video = bridge.normal(1, 1, 4, 4, 3)
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(tiny.encode(video).parameters)
    (found,) = tmp_path.rglob("*.xplane.pb")
    assert b"encoder/down_blocks/0/resnets/0/conv1" in found.read_bytes()
