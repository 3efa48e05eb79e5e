"""How many programs there are, however many frames, tiles and calls."""

import statistics
import time
from collections import Counter

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxvae.models.cogvideox import steps


@pytest.fixture
def seen(monkeypatch, compiled):
    """What was compiled, or fetched from a cache, in the test, and which steps were traced."""
    found = {"compiled": compiled, "traced": Counter()}

    def counted(name, step):
        def run(parts, x, cache):
            found["traced"][name, x.shape[1:4], cache is not None] += 1
            return step(parts, x, cache)

        return run

    # other functions than those that other tests have compiled
    for name in ("encode_chunk", "decode_chunk"):
        step = counted(name.removesuffix("_chunk"), getattr(steps, name))
        monkeypatch.setattr(f"jaxvae.models.cogvideox.autoencoder.{name}", step)
    return found


def run(vae, method, frames, height=4, width=4):
    """Encode or decode zeros; the size is that of the latent."""
    batch = (vae.num_latent_frames_batch_size, vae.num_sample_frames_batch_size)
    assert batch == (2, 4)
    if method == "encode":
        shape = (1, frames, 2 * height, 2 * width, 3)
        return jax.block_until_ready(vae.encode(np.zeros(shape, np.float32)).parameters)
    return jax.block_until_ready(vae.decode(np.zeros((1, frames, height, width, 2), np.float32)))


def steps_of(seen):
    return [name for name in seen["compiled"] if "_compiled" in name]


LONGEST = {"encode": 17, "decode": 9}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["encode", "decode"])
def test_any_number_of_frames(objective, seen, method):
    """Encoding starts with 1 to 7 frames, decoding with 1 to 3, and both go on with one program."""
    vae, size = objective.ours, {"encode": 4, "decode": 2}[method]
    for frames in range(1, LONGEST[method] + 1):
        run(vae, method, frames)
    found = seen["traced"]
    assert sorted((t, cached) for (_, (t, *_), cached) in found) == [
        *((t, False) for t in range(1, size)),
        (size, False),
        (size, True),
        *((t, False) for t in range(size + 1, 2 * size)),
    ]
    assert set(found.values()) == {1}
    assert len(steps_of(seen)) == len(found) == 2 * size


def tiled(bridge, vae):
    vae = bridge.clone(vae)
    vae.enable_tiling(8, 8, 0.25, 0.25)  # 4 latents by steps of 3
    return vae


@pytest.mark.slow
@pytest.mark.parametrize("method", ["encode", "decode"])
def test_any_number_of_tiles(objective, bridge, seen, method):
    """Four sizes of tile, a first and a next chunk of each."""
    vae = tiled(bridge, objective.ours)
    frames = {"encode": 8, "decode": 4}[method]
    for height, width in ((5, 5), (8, 8), (11, 5), (11, 14)):
        assert height % 3 == width % 3 == 2  # 4, 4, ..., 2
        run(vae, method, frames, height, width)
    assert set(seen["traced"].values()) == {1}
    assert len(steps_of(seen)) == len(seen["traced"]) == 8


def test_a_second_call_compiles_nothing(objective, bridge, seen):
    """Nor do switches that are turned, and turned back."""
    vae = bridge.clone(objective.ours)

    def call(tiling, checkpointing):
        if tiling:
            vae.enable_tiling(16, 8, 0.25, 0.25)  # cut in width alone, 4 and 2 latents
        else:
            vae.disable_tiling()
        if checkpointing:
            vae.enable_gradient_checkpointing()
        else:
            vae.disable_gradient_checkpointing()
        run(vae, "decode", 4, 4, 5)

    states = [(False, False), (True, False), (False, True)]
    counts = []
    for state in states:
        call(*state)
        counts.append(len(steps_of(seen)))
    assert counts == [2, 2 + 4, 2 + 4 + 2]
    seen["compiled"].clear()
    for state in [*states, *reversed(states)]:
        call(*state)
    assert seen["compiled"] == []


def equations(jaxpr):
    """How often each operation is written, functions that are called several times once each."""
    found, waiting, known = Counter(), [jaxpr], set()
    while waiting:
        one = waiting.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        for equation in one.eqns:
            found[equation.primitive.name] += 1
            waiting.extend(jax.extend.core.jaxprs_in_params(equation.params))
    return found


def arguments(method, frames, height, width):
    if method == "encode":
        shape = (1, frames, 2 * height, 2 * width, 3)
        call = lambda vae, x: vae.encode(x).parameters  # noqa: E731
    else:
        shape = (1, frames, height, width, 2)
        call = lambda vae, z: vae.decode(z)  # noqa: E731
    return call, jax.ShapeDtypeStruct(shape, np.float32)


def traced(vae, method, *sizes):
    call, x = arguments(method, *sizes)
    return jax.make_jaxpr(call)(vae, x).jaxpr


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_a_callers_program_does_not_grow_with_frames(objective, method):
    counts = [equations(traced(objective.ours, method, t, 4, 4)) for t in (17, 49)]
    assert counts[0] == counts[1]
    assert counts[0]["scan"] == 1


@pytest.mark.slow
def test_more_frames_take_no_longer_to_compile(objective):
    """Medians of five, without what a cache would give; 49 are nearly three times 17."""
    times = {17: [], 49: []}
    use = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        for _ in range(5):
            for frames, taken in times.items():
                call, z = arguments("decode", (frames - 1) // 2 + 1, 4, 4)
                lowered = jax.jit(call).lower(objective.ours, z)
                start = time.perf_counter()
                lowered.compile()
                taken.append(time.perf_counter() - start)
    finally:
        jax.config.update("jax_enable_compilation_cache", use)
        compilation_cache.reset_cache()
    assert statistics.median(times[49]) < 2 * statistics.median(times[17])


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_a_callers_program_does_not_grow_with_tiles(objective, bridge, method):
    """But for what cuts, blends and joins them: no convolution, and no loop, is written again."""
    vae = tiled(bridge, objective.ours)
    few, many = (equations(traced(vae, method, 9, size, size)) for size in (8, 17))
    for name in ("conv_general_dilated", "scan", "reduce_sum", "logistic"):
        assert few[name] == many[name] > 0
    whole = equations(traced(objective.ours, method, 9, 4, 4))
    assert few["conv_general_dilated"] <= 4 * whole["conv_general_dilated"]
