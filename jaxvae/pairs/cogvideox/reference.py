"""The PyTorch side of the CogVideoX pair: diffusers' model, and the inputs for both sides.

The only file that imports torch and diffusers.
"""

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from jaxvae.io.diffusers_folder import split_source
from jaxvae.io.messages import first_line
from jaxvae.io.quality import Gathered
from jaxvae.io.video import to_pixels
from jaxvae.pairs.cogvideox.ladder import (
    R_LIMIT,
    call,
    decode_nnx,
    encode_nnx,
    forward_nnx,
    forward_shipped,
    read_config,
)
from jaxvae.pairs.inputs import LARGE_MEAN, Clip, normal
from parity import Case, InputError

# diffusers warns at import about things that a user cannot change
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKLCogVideoX as Reference


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """Return diffusers' model: the checkpoint `weights`, or random weights of `config`.

    Random weights are diffusers' own initialisation under `torch.manual_seed(seed)`, then norm
    weights 1+0.3N and biases 0.2N: at 1 and 0 they would hide swapped or unused ones.
    """
    with warnings.catch_warnings():  # diffusers warns while it loads, too
        warnings.simplefilter("ignore")
        reference: Any = Reference
        if weights is not None:
            folder, subfolder = split_source(weights)
            try:
                loaded = reference.from_pretrained(
                    folder,
                    subfolder=subfolder,
                    use_safetensors=True,
                    low_cpu_mem_usage=False,
                    torch_dtype=torch.float32,
                )
            except (OSError, ValueError, RuntimeError, TypeError) as error:
                reason = first_line(error)
                raise InputError(f"{weights}: diffusers cannot load it ({reason})") from error
            return loaded.eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model = reference(**read_config(config).to_dict())
            except (ValueError, RuntimeError) as error:
                raise InputError(f"diffusers cannot build this configuration: {error}") from error
            randomise(model)
    return model.eval()


def randomise(model: torch.nn.Module) -> None:
    """Draw norm weights 1+0.3N and every bias 0.2N from torch's current random state."""
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias":
                    parameter.normal_().mul_(0.2)
                elif parameter.ndim == 1:
                    parameter.normal_().mul_(0.3).add_(1.0)


def encode_torch(model: Any, sample: Any) -> dict[str, Any]:
    """Mean and clamped log-variance of the reference's posterior."""
    posterior = model.encode(sample).latent_dist
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decode_torch(model: Any, z: Any) -> Any:
    """The reference's video."""
    return model.decode(z).sample


def forward_torch(model: Any, sample: Any) -> Any:
    """The reference's reconstruction."""
    return model(sample).sample


def cases(torch_module: Any, clip: Clip, seed: int) -> tuple[Case, ...]:
    """The clip through encode, decode and the whole, then noise through every kind of module.

    The decoder gets the reference's latents of the clip. Encode and decode are recorded call by
    call and run layer by layer; the whole runs as it is shipped, compiled, and is compared at its
    output, which the reference has shown by then.
    """
    config = torch_module.config
    if config.in_channels != clip.frames.shape[1]:
        raise InputError(
            f"in_channels is {config.in_channels}, and the clip has {clip.frames.shape[1]} channels"
        )
    quant = config.use_quant_conv or config.use_post_quant_conv
    if quant and config.out_channels != config.latent_channels:
        # diffusers builds both convolutions for out_channels: they fail at the first call
        raise InputError(
            f"use_quant_conv needs out_channels ({config.out_channels}) equal to "
            f"latent_channels ({config.latent_channels}) in diffusers; set it to false"
        )
    halvings = len(config.block_out_channels) - 1
    height, width = clip.frames.shape[-2:]
    if min(height, width) < 2**halvings:
        raise InputError(
            f"frames of {height}x{width}: this model halves them {halvings} times and needs at "
            f"least {2**halvings}x{2**halvings}"
        )
    real = (
        Case("encode/clip", (clip.frames,), torch=encode_torch, nnx=encode_nnx, source=clip.source),
        Case(
            "decode/clip",
            args_from=_latents,
            torch=decode_torch,
            nnx=decode_nnx,
            source=clip.source,
        ),
        Case(
            "forward/clip",
            (clip.frames,),
            torch=forward_torch,
            nnx=forward_shipped,
            depth=0,
            returned_from=_video,
            seen=_reconstruction,
            source=clip.source,
        ),
    )
    return (*real, *synthetic(torch_module, seed))


def _video(outputs: Mapping[str, Mapping[str, Any]]) -> Any:
    """The output of `forward_torch` for the clip: it encodes, and decodes the mean."""
    return outputs["decode/clip"][""]


def _reconstruction(args: tuple[Any, ...], ref: Mapping[str, Any], port: Mapping[str, Any]) -> str:
    """PSNR and SSIM of a clip's reconstruction by each side, and of one against the other."""
    if importlib.util.find_spec("skimage") is None:
        return "PSNR and SSIM need scikit-image: install jaxvae[video]"
    clip, wanted = (to_pixels(np.moveaxis(one[0], 0, -1)) for one in (args[0], ref[""]))
    found = to_pixels(port[""][0])
    if not clip.shape == wanted.shape == found.shape:
        return ""  # fewer frames come back than went in, or the port returns others
    names = ("reference", "port", "one against the other")
    lines = []
    for name, *pair in zip(names, (wanted, found, found), (clip, clip, wanted), strict=True):
        gathered = Gathered()
        gathered.add(*pair)
        psnr, ssim = gathered.quality()
        lines.append(f"{name} {psnr:.2f} dB, SSIM {ssim:.4f}")
    return "; ".join(lines)


def _latents(outputs: Mapping[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    return (outputs["encode/clip"]["mean"],)


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


def synthetic(torch_module: Any, seed: int) -> tuple[Case, ...]:
    """N(0, 1) with odd T, and a large mean with even T and batch 2, for each distinct module.

    Two modules are alike if class, settings and inner structure are. A module gets the shapes that
    it sees when 9 or 8 frames of 16x16 go through the whole: the whole's operations are compiled
    anyway, and none for the module alone. The odd cases come first, the whole before its parts:
    what it compiled is kept until it runs on the other shapes.
    """
    with torch.device("meta"):  # a model without values: only shapes are computed
        shadow = type(torch_module).from_config(torch_module.config)
    made: list[Case] = []
    for name, batch, frames, mean in (("normal-odd", 1, 9, 0.0), ("mean30-even", 2, 8, LARGE_MEAN)):
        seen: set[str] = set()
        shapes = _shapes(shadow, batch, frames)
        for path, module in torch_module.named_modules():
            signature = _signature(module)
            if signature not in seen and path in shapes:
                seen.add(signature)
                args = tuple(normal(x, seed + i, mean) for i, x in enumerate(shapes[path]))
                made.append(_case(path, name, args, large=mean != 0.0))
    return tuple(made)


def _case(path: str, name: str, args: tuple[Any, ...], large: bool) -> Case:
    return Case(
        f"{'call' if path else 'forward'}/{name}",
        args,
        path=path,
        torch=call if path else forward_torch,
        nnx=call if path else forward_nnx,
        depth=0,
        floor=large or not path,
        r_limit=R_LIMIT if large else None,
    )


def _signature(module: torch.nn.Module) -> str:
    """Class, settings and inner structure; how many channels there are makes no difference."""
    settings = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, (bool, float, str, tuple)) and key != "training"
    }
    inner = [(path, type(child).__name__) for path, child in module.named_modules()]
    conditioned = getattr(module, "spatial_norm_dim", None) is not None
    return json.dumps([inner, settings, conditioned], default=str)


def _shapes(model: Any, batch: int, frames: int) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """By path, the shapes of the arrays that each module's first call gets; dropout left out."""
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
    paths = {module: path for path, module in model.named_modules()}

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        arrays = tuple(tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor))
        shapes.setdefault(paths[module], arrays)

    called = [module for module in paths if not isinstance(module, torch.nn.Dropout)]
    hooks = [module.register_forward_pre_hook(note) for module in called]
    try:
        with torch.no_grad():
            model(torch.zeros(batch, model.config.in_channels, frames, 16, 16, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return shapes
