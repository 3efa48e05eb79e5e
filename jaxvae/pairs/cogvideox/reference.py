"""The PyTorch side of the CogVideoX pair: diffusers' model, and the inputs for both sides."""

import warnings
from collections.abc import Sequence
from typing import Any

from jaxvae.pairs import reference
from jaxvae.pairs.cogvideox.ladder import CONFIGS, call
from jaxvae.pairs.inputs import LARGE_MEAN, Clip
from jaxvae.pairs.port import read_config
from jaxvae.pairs.reference import Noise, decode_torch, encode_torch, forward_torch
from parity import Case, InputError

# diffusers warns at import about things that a user cannot change
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKLCogVideoX as Reference


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """Return diffusers' model: the checkpoint `weights`, or random weights of `config`."""
    settings = None if weights else read_config(CONFIGS, config)
    return reference.make_torch(Reference, weights, settings, seed)


def cases(torch_module: Any, clip: Clip, seed: int) -> tuple[Case, ...]:
    """Return the clip through encode, decode and the whole, then noise for every kind of module.

    Noise is N(0, 1) with odd T, and a large mean with even T and batch 2, of 16x16.
    """
    config = torch_module.config
    quant = config.use_quant_conv or config.use_post_quant_conv
    if quant and config.out_channels != config.latent_channels:
        # diffusers builds both convolutions for out_channels: they fail at the first call
        raise InputError(
            f"use_quant_conv needs out_channels ({config.out_channels}) equal to "
            f"latent_channels ({config.latent_channels}) in diffusers; set it to false"
        )
    reference.check_sample(config, clip.frames)
    channels = config.in_channels
    noises = (
        Noise("normal-odd", (1, channels, 9, 16, 16)),
        Noise("mean30-even", (2, channels, 8, 16, 16), LARGE_MEAN),
    )
    synthetic = reference.synthetic(torch_module, seed, noises, call)
    return (*reference.real(clip.frames, clip.source), *synthetic)


def unexercised(torch_module: Any, cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the parts that only one chunk of frames, or one tile, leaves out."""
    encoded = {
        case.args[0].shape[2] for case in cases if case.torch in (encode_torch, forward_torch)
    }
    ratio = torch_module.config.temporal_compression_ratio
    decoded = {(frames - 1) // ratio + 1 for frames in encoded}
    decoded |= {case.args[0].shape[2] for case in cases if case.torch is decode_torch}
    parts = (
        ("encode", encoded, torch_module.num_sample_frames_batch_size),
        ("decode", decoded, torch_module.num_latent_frames_batch_size),
    )
    gaps = [
        f"{name} ran in one chunk of frames only: no cache was passed on"
        for name, frames, size in parts
        if all(count // size < 2 for count in frames)
    ]
    if not torch_module.use_tiling:
        gaps.append("tiling was off: no seam between tiles")
    return tuple(gaps)
