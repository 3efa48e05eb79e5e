import diffusers.models.autoencoders.autoencoder_kl_cogvideox as source
import jax
import numpy as np
import pytest
import torch
from flax import nnx

from jaxvae.layers import norms
from jaxvae.models.cogvideox.steps import decode_chunk, decode_single
from jaxvae.run import streams
from jaxvae.run.chunks import chunk_bounds
from jaxvae.run.streams import regroup


def joined(parts):
    return np.concatenate([np.asarray(part) for part in parts], axis=1)


def split(x, lengths):
    """Arrays of these lengths in turn, until nothing is left."""
    start, i = 0, 0
    while start < x.shape[1]:
        end = start + lengths[i % len(lengths)]
        yield x[:, start:end]
        start, i = end, i + 1


def test_decode_stream_is_decode_bit_for_bit(bridge, pair):
    for frames in (1, 2, 3, 4, 7):
        z = bridge.normal(1, frames, 4, 4, 4, seed=frames)
        parts = list(pair.ours.decode_stream(z))
        bounds = chunk_bounds(frames, 2)
        assert [part.shape[1] for part in parts] == [
            4 * (b - a) - 3 * ((b - a) % 2) for a, b in bounds
        ]
        assert np.array_equal(joined(parts), pair.ours.decode(z))


@pytest.mark.parametrize("lengths", [(1,), (33,), (9, 8), (5, 1, 2, 40), (20, 13)])
def test_encode_stream_is_encode_bit_for_bit(bridge, pair, lengths):
    x = bridge.normal(1, 33, 16, 16, 3)
    parts = list(pair.ours.encode_stream(split(x, lengths), 33))
    assert [part.shape[1] for part in parts] == [3, 2, 2, 2]
    assert np.array_equal(joined(parts), pair.ours.encode(x).parameters)


def test_two_streams_at_once_do_not_meet(bridge, pair):
    a, b = (bridge.normal(1, 7, 4, 4, 4, seed=seed) for seed in (0, 1))
    together = list(zip(pair.ours.decode_stream(a), pair.ours.decode_stream(b), strict=True))
    for z, parts in zip((a, b), zip(*together, strict=True), strict=True):
        assert np.array_equal(joined(parts), pair.ours.decode(z))


def test_a_switch_in_the_middle_of_a_stream_is_for_later_calls(bridge, pair):
    vae = bridge.clone(pair.ours)
    z = bridge.normal(1, 7, 4, 4, 4)
    stream = vae.decode_stream(z)
    parts = [next(stream)]
    vae.enable_tiling(8, 8)
    vae.num_latent_frames_batch_size = 1
    parts.extend(stream)
    assert np.array_equal(joined(parts), pair.ours.decode(z))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_regroup_gives_the_chunks_whatever_comes_in(size):
    for total in (1, 2, 7, 8, 9, 17, 24):
        video = np.arange(total).reshape(1, total, 1, 1, 1)
        for lengths in ((1,), (total,), (2, 5), (7, 1, 1)):
            chunks = list(regroup(split(video, lengths), chunk_bounds(total, size)))
            expected = [video[:, a:b] for a, b in chunk_bounds(total, size)]
            assert [c.tolist() for c in chunks] == [c.tolist() for c in expected]


def test_regroup_cuts_what_it_was_given(monkeypatch):
    """What is left of a long array is not copied chunk by chunk, each time by a new program."""
    cut, slice_of = [], streams.lax.dynamic_slice_in_dim

    def seen(x, *bounds):
        cut.append(x)
        return slice_of(x, *bounds)

    monkeypatch.setattr(streams.lax, "dynamic_slice_in_dim", seen)
    video = np.arange(40.0).reshape(1, 40, 1, 1, 1)
    assert len(list(regroup([video], chunk_bounds(40, 1)))) == 40
    assert len(cut) == 40
    assert all(x is video for x in cut)


@pytest.mark.parametrize(("total", "found"), [(9, "at least 10"), (16, "10"), (17, "10")])
def test_a_wrong_total_is_an_error_before_the_last_chunk(bridge, pair, total, found):
    x = bridge.normal(1, 10, 16, 16, 3)
    stream = pair.ours.encode_stream(split(x, (5,)), total)
    message = f"encode_stream: expected {total} frames in all, found {found}; give their number"
    with pytest.raises(ValueError, match=message):
        list(stream)


def test_wrong_streams_are_explained(bridge, pair):
    x = bridge.normal(1, 4, 16, 16, 3)
    with pytest.raises(ValueError, match=r"encode_stream: expected \(batch, .*found shape \(4, 16"):
        next(pair.ours.encode_stream(x, 4))  # an array of the whole: its parts are samples
    with pytest.raises(ValueError, match=r"\(1, 16, 16, 3\) and then \(1, 8, 16, 3\)"):
        next(pair.ours.encode_stream([x[:, :2], x[:, :2, :8]], 4))
    with pytest.raises(ValueError, match="at least 1 frame"):
        pair.ours.encode_stream([], 0)
    with pytest.raises(ValueError, match="decode_stream: expected"):
        pair.ours.decode_stream(x)


def test_memory_does_not_grow_with_the_frames(bridge, pair):
    """What is alive after each chunk but the first is the same, however many there are."""
    x = bridge.normal(1, 65, 16, 16, 3)
    sizes = []
    for part in pair.ours.encode_stream(split(x, (1,)), 65):
        del part
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))
    assert len(sizes) == 8
    assert len(set(sizes[1:-1])) == 1


def one_latent_at_a_time(pair, bridge, z, monkeypatch):
    """diffusers' decoder, one latent frame at a time, with single frames doubled in time.

    Only the upsampling is another: interpolate by 2 in time too, instead of in space alone.
    """
    double = [False]

    def upsample(self, inputs, original=source.CogVideoXUpsample3D.forward):
        if not (double[0] and self.compress_time and inputs.shape[2] == 1):
            return original(self, inputs)
        x = torch.nn.functional.interpolate(inputs, scale_factor=2.0)
        frames = [self.conv(x[:, :, t]) for t in range(2)]
        return torch.stack(frames, dim=2)

    monkeypatch.setattr(source.CogVideoXUpsample3D, "forward", upsample)
    cache, parts = None, []
    for t in range(z.shape[1]):
        double[0] = t > 0 or z.shape[1] % 2 == 0
        part, cache = pair.theirs.decoder(bridge.first(z[:, t : t + 1]), conv_cache=cache)
        parts.append(bridge.last(part))
    monkeypatch.undo()
    return parts


@pytest.mark.parametrize(
    "frames", [*(pytest.param(many, marks=pytest.mark.slow) for many in (13, 4)), 1]
)
def test_single_latents(bridge, pair, monkeypatch, frames):
    z = bridge.normal(1, frames, 4, 4, 4)
    parts = list(pair.ours.decode_stream(z, single_latents=True))
    odd = frames % 2
    assert [part.shape[1] for part in parts] == [1] * odd + [4] * (frames - odd)
    expected = one_latent_at_a_time(pair, bridge, z, monkeypatch)
    for part, reference in zip(parts, expected, strict=True):
        assert bridge.error(part, reference) < 2e-5
    # the model is left as it was
    usual = pair.ours.decode(z)
    assert bridge.error(usual, bridge.last(pair.theirs.decode(bridge.first(z)).sample)) < 2e-5
    if frames == 1:
        assert np.array_equal(joined(parts), usual)
    elif frames == 13:
        # what the docstring of decode_stream says: 11 % of the video (rms)
        difference = np.asarray(usual) - joined(parts)
        assert 0.105 < np.sqrt(np.mean(difference**2) / np.mean(np.square(usual))) < 0.115


def temporary_bytes(step, parts, z):
    """What the program of a chunk that is not the first needs beside its arguments."""
    _, cache = jax.eval_shape(lambda parts, z: decode_chunk(parts, z, None), parts, z[:, :2])
    program = jax.jit(lambda *args: step(*args)).lower(parts, z, cache).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_single_latents_need_less_memory(bridge, pair):
    parts = (pair.ours.decoder, None)
    usual = temporary_bytes(decode_chunk, parts, bridge.normal(1, 2, 8, 8, 4))
    single = temporary_bytes(decode_single, parts, bridge.normal(1, 1, 8, 8, 4))
    assert 0.45 < single / usual < 0.55  # half, as the docstring of decode_stream says


@pytest.mark.slow
def test_chunks_of_one_latent_are_another_thing(bridge, make_pair):
    """What diffusers does where its chunk size is set to 1: no frame is doubled in time."""
    both = make_pair()
    both.ours.num_latent_frames_batch_size = both.theirs.num_latent_frames_batch_size = 1
    z = bridge.normal(1, 4, 4, 4, 4)
    reference = bridge.last(both.theirs.decode(bridge.first(z)).sample)
    assert reference.shape[1] == 4
    assert bridge.error(both.ours.decode(z), reference) < 2e-5
    assert np.array_equal(joined(both.ours.decode_stream(z)), both.ours.decode(z))


@pytest.mark.slow
@pytest.mark.parametrize("frames", [5, 4])
def test_single_latents_differ_by_the_group_statistics_alone(
    bridge, make_pair, monkeypatch, frames
):
    """Where the norms take no statistics, it is decode again."""

    def affine(self, x):
        return x * self.scale[...].reshape(1, 1, 1, 1, -1)

    monkeypatch.setattr(norms.GroupNorm, "__call__", affine)
    vae = make_pair().ours
    for _, module in nnx.iter_modules(vae):
        module.mark = "affine"  # programs of its own
    z = bridge.normal(1, frames, 4, 4, 4)
    parts = list(vae.decode_stream(z, single_latents=True))
    assert bridge.error(joined(parts), vae.decode(z)) < 1e-5
