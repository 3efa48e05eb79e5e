"""The PyTorch side of the Wan pair: diffusers' model, and the inputs for both sides."""

import warnings
from collections.abc import Sequence
from typing import Any

from jaxvae.pairs import reference
from jaxvae.pairs.inputs import LARGE_MEAN, Clip
from jaxvae.pairs.port import read_config
from jaxvae.pairs.reference import Noise, encode_torch, forward_torch
from jaxvae.pairs.wan.explicit_caches import make_explicit
from jaxvae.pairs.wan.ladder import CONFIGS, call
from parity import Case, InputError

# diffusers warns at import about things that a user cannot change
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKLWan as Reference


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """Return diffusers' model: the checkpoint `weights`, or random weights of `config`."""
    settings = None if weights else read_config(CONFIGS, config)
    return make_explicit(reference.make_torch(Reference, weights, settings, seed))


def cases(torch_module: Any, clip: Clip, seed: int) -> tuple[Case, ...]:
    """Return the clip through encode, decode and the whole, then noise for every kind of module.

    Noise is N(0, 1) of the first chunk that a module gets, and a large mean of the last chunk, with
    batch 2; of two chunks and as small as the model takes.
    """
    config = torch_module.config
    patch = config.patch_size or 1
    channels, given = config.in_channels // patch**2, clip.frames.shape[1]
    if channels != given:
        raise InputError(f"the model takes {channels} channels, and the clip has {given}")
    side = patch << (len(config.dim_mult) - 1)
    height, width = clip.frames.shape[-2:]
    whole = not config.is_residual or height % side == width % side == 0
    if min(height, width) < side or height % patch or width % patch or not whole:
        wanted = "multiples of" if config.is_residual else "at least"
        raise InputError(f"frames of {height}x{width}: this model needs {wanted} {side}x{side}")
    shape = (channels, 5, 2 * side, 3 * side)
    noises = (
        Noise("normal-first", (1, *shape)),
        # residual blocks that halve time take several frames with caches only
        Noise("mean30-last", (2, *shape), LARGE_MEAN, last=not config.is_residual),
    )
    synthetic = reference.synthetic(torch_module, seed, noises, call)
    return (*reference.real(clip.frames, clip.source), *synthetic)


def unexercised(torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the parts that only one chunk of frames, or one tile, leaves out."""
    frames = [
        case.args[0].shape[2] for case in cases if case.torch in (encode_torch, forward_torch)
    ]
    gaps = []
    if max(frames, default=0) < 9:
        gaps.append("at most two chunks of frames ran: no cache came from a chunk that had one")
    if not torch_module.use_tiling:
        gaps.append("tiling was off: no seam between tiles")
    return tuple(gaps)
