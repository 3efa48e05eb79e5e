"""What memory grows with, and what it does not: as the compiler plans it, and as it is taken."""

import gc
import itertools
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from jaxvae import AutoencoderKLCogVideoX, CogVideoXVAEConfig
from jaxvae.layers.norms import GroupNorm
from jaxvae.models.cogvideox.steps import decode_chunk
from jaxvae.run import gradient_checkpointing
from jaxvae.run.computations import call_apart
from jaxvae.run.steps import Coder
from tests.commands import python


def temporary(vae, latent):
    """Temporary bytes of each step that decoding such a latent runs."""
    return [
        coder.lower(chunk, cache).compile().memory_analysis().temp_size_in_bytes
        for coder, chunk, cache in vae.step_programs(latent=latent)
    ]


def live():
    gc.collect()  # of tests before
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.slow
def test_a_stream_holds_the_same_for_any_number_of_frames(objective):
    held = {}
    for frames in (5, 21):
        latent = jax.numpy.zeros((1, frames, 8, 8, 2))
        before = live()
        held[frames] = [live() - before for _ in objective.ours.decode_stream(latent)]
        assert len(held[frames]) == (frames - 1) // 2
    assert min(held[5]) > 0
    # the first chunk is larger than the next ones, and is given up before the third
    assert max(held[21]) == max(held[5])
    assert len(set(held[21][2:])) == 1


@pytest.mark.slow
def test_tiles_bound_what_steps_need(objective, bridge):
    vae = bridge.clone(objective.ours)
    whole = [max(temporary(vae, (1, 2, size, size, 2))) for size in (8, 20)]
    assert whole[1] > 4 * whole[0]  # (20 / 8) ** 2 = 6.25
    vae.enable_tiling(16, 16, 0.25, 0.25)  # 8 latents by steps of 6
    tiled = [max(temporary(vae, (1, 2, size, size, 2))) for size in (8, 20)]
    assert tiled[0] == tiled[1] == whole[0]


@pytest.mark.slow
def test_a_callers_program_needs_more_for_its_outputs_only(objective):
    """Frames are stacked by the scan, put in order and joined: no more than three times."""
    planned = []
    for frames in (5, 13, 21):
        z = jax.ShapeDtypeStruct((1, frames, 16, 16, 2), np.float32)
        program = jax.jit(lambda vae, z: vae.decode(z)).lower(objective.ours, z).compile()
        found = program.memory_analysis()
        planned.append((found.temp_size_in_bytes, found.output_size_in_bytes))
    for (temp, output), (more_temp, more_output) in itertools.pairwise(planned):
        assert more_output > output
        assert more_temp - temp <= 3 * (more_output - output)


PEAK = """
import sys
from pathlib import Path
import numpy as np
from jaxvae import AutoencoderKLCogVideoX
from parity.host.memory import give_back, peak_memory

vae = AutoencoderKLCogVideoX.from_pretrained(sys.argv[1])
latent = np.zeros((1, int(sys.argv[3]), 64, 64, 2), np.float32)

def run():
    parts = (np.asarray(video) for video in vae.decode_stream(latent))
    return sum(part.shape[1] for part in (list(parts) if sys.argv[2] == "kept" else parts))

run()  # compiling takes memory too
give_back()
Path("/proc/self/clear_refs").write_text("5")  # the peak is that of what comes now
print(run(), peak_memory())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak on request")
def test_a_stream_takes_the_same_for_any_number_of_frames(objective, tmp_path):
    """Peaks of processes of their own; who keeps all frames of 241 latents holds 95 MB of video.

    The latents themselves are 8 MB, twice (an array of NumPy's and one of JAX's), and operations
    that run side by side take some 50 MB more at the worst moment of many steps than of few.
    """
    objective.ours.save_pretrained(tmp_path)
    peaks = {}
    for how, latents in (("passed on", 5), ("passed on", 241), ("kept", 241)):
        done = python("-c", PEAK, tmp_path, how, latents)
        frames, peaks[how, latents] = map(int, done.split())
        assert frames == 2 * latents - 1
    short, long = peaks["passed on", 5], peaks["passed on", 241]
    assert long - short < 90e6 < peaks["kept", 241] - short


def test_what_is_kept_apart_is_inlined_inside_of_shard_map():
    """XLA does not know the number of a device elsewhere, and sharded time needs it."""

    def apart(x):
        return call_apart(lambda module, x: module(x), nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x)

    x, split = np.ones((2, 3), np.float32), jax.sharding.PartitionSpec("time")
    mesh = jax.make_mesh((1,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(apart, mesh=mesh, in_specs=split, out_specs=split)
    assert "inlineable" in jax.jit(apart).lower(x).as_text()
    assert "inlineable" not in jax.jit(sharded).lower(x).as_text()


def test_resnets_are_computations_of_their_own(monkeypatch):
    """Inlined, a program makes first what needs the latent alone, for all spatial norms."""
    config = CogVideoXVAEConfig(
        block_out_channels=(8, 8, 8, 8), layers_per_block=3, norm_num_groups=4, latent_channels=2
    )
    vae = nnx.eval_shape(lambda: AutoencoderKLCogVideoX(config, rngs=nnx.Rngs(0)))
    latent = jax.ShapeDtypeStruct((1, 3, 8, 8, 2), "float32")

    def planned():
        def step(*given):  # another each time, so that each is traced
            return decode_chunk(*given)

        program = Coder(step, (vae.decoder, vae.post_quant_conv)).lower(latent, None).compile()
        return program.memory_analysis().temp_size_in_bytes

    apart = planned()
    monkeypatch.setattr(
        gradient_checkpointing, "call_apart", lambda function, *given: function(*given)
    )
    assert apart < 0.6 * planned()


@pytest.mark.parametrize(("dtype", "copies"), [("float32", 0), ("bfloat16", 1)])
def test_a_group_norm_keeps_at_most_one_float32_copy(dtype, copies):
    """Its differences are written where the result will be."""
    norm = GroupNorm(8, 32, dtype=dtype)
    x = jax.ShapeDtypeStruct((1, 4, 32, 32, 32), dtype)
    analysis = jax.jit(norm.__call__).lower(x).compile().memory_analysis()
    assert analysis.temp_size_in_bytes == pytest.approx(copies * x.size * 4, abs=0.01 * x.size)
