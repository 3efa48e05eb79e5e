"""The PyTorch side of a pair: diffusers' model, and inputs for all that it is made of.

Only this file and the `reference` of each pair import torch and diffusers.
"""

import importlib.util
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jaxvae.io.diffusers_folder import split_source
from jaxvae.io.messages import first_line
from jaxvae.io.quality import Gathered
from jaxvae.io.video import to_pixels
from jaxvae.models.config import VAEConfig
from jaxvae.pairs.inputs import normal
from jaxvae.pairs.port import R_LIMIT, call, decode_nnx, encode_nnx, forward_nnx, forward_shipped
from parity import Case, InputError


def make_torch(reference: Any, weights: str | None, config: VAEConfig | None, seed: int) -> Any:
    """Return diffusers' model: the checkpoint `weights`, or random weights of `config`.

    Random weights are diffusers' own initialisation under `torch.manual_seed(seed)`, then norm
    weights 1+0.3N and biases 0.2N: at 1 and 0 they would hide swapped or unused ones.
    """
    with warnings.catch_warnings():  # diffusers warns while it loads, too
        warnings.simplefilter("ignore")
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
        assert config is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model = reference(**config.to_dict())
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
                elif parameter.numel() == parameter.shape[0]:
                    parameter.normal_().mul_(0.3).add_(1.0)


def encode_torch(model: Any, sample: Any) -> dict[str, Any]:
    """Mean and clamped log-variance of the reference's posterior."""
    posterior = model.encode(sample).latent_dist
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decode_torch(model: Any, z: Any) -> Any:
    """The reference's video or image."""
    return model.decode(z).sample


def forward_torch(model: Any, sample: Any) -> Any:
    """The reference's reconstruction."""
    return model(sample).sample


def check_sample(config: Any, sample: Any) -> None:
    """Raise InputError for a sample that a model of halving blocks cannot take."""
    if config.in_channels != sample.shape[1]:
        raise InputError(
            f"in_channels is {config.in_channels}, and the clip has {sample.shape[1]} channels"
        )
    halvings = len(config.block_out_channels) - 1
    height, width = sample.shape[-2:]
    if min(height, width) < 2**halvings:
        raise InputError(
            f"frames of {height}x{width}: this model halves them {halvings} times and needs at "
            f"least {2**halvings}x{2**halvings}"
        )


def real(sample: Any, source: str, name: str = "clip") -> tuple[Case, ...]:
    """Return a sample through encode, decode and the whole.

    The decoder gets the reference's latents of the sample. Encode and decode are recorded call by
    call and run layer by layer; the whole runs as it is shipped, compiled, and is compared at its
    output, which the reference has shown by then.
    """
    encode, decode = f"encode/{name}", f"decode/{name}"
    return (
        Case(encode, (sample,), torch=encode_torch, nnx=encode_nnx, source=source),
        Case(
            decode,
            args_from=lambda outputs: (outputs[encode]["mean"],),
            torch=decode_torch,
            nnx=decode_nnx,
            source=source,
        ),
        Case(
            f"forward/{name}",
            (sample,),
            torch=forward_torch,
            nnx=forward_shipped,
            depth=0,
            # `forward_torch` encodes, and decodes the mean
            returned_from=lambda outputs: outputs[decode][""],
            seen=_reconstruction,
            source=source,
        ),
    )


def _reconstruction(args: tuple[Any, ...], ref: Mapping[str, Any], port: Mapping[str, Any]) -> str:
    """PSNR and SSIM of a reconstruction by each side, and of one against the other."""
    if importlib.util.find_spec("skimage") is None:
        return "PSNR and SSIM need scikit-image: pip install 'nnx-parity[video]'"
    clip, wanted, found = (_pixels(one) for one in (args[0], ref[""], np.moveaxis(port[""], -1, 1)))
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


def _pixels(values: Any) -> Any:
    """Frames (t, h, w, c) of 8 bits of a channel-first video or image."""
    first = np.moveaxis(values[0], 0, -1)
    return to_pixels(first if first.ndim == 4 else first[None])


@dataclass(frozen=True)
class Noise:
    """Inputs of N(mean, 1) for every kind of module, as if the whole got `shape`.

    A module gets the shapes of its first call then, or of its `last`.
    """

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0
    last: bool = False


def synthetic(
    torch_module: Any,
    seed: int,
    noises: Sequence[Noise],
    call: Callable[..., Any] = call,
    call_torch: Callable[..., Any] | None = None,
) -> tuple[Case, ...]:
    """Return each noise for each distinct module; `call` calls one of either side.

    Where the reference wants other arguments `call_torch` calls its modules.

    Two modules are alike if class, settings and inner structure are. A module gets the shapes that
    it sees when a noise goes through the whole: the whole's operations are compiled anyway, and
    none for the module alone. What comes first, comes whole before its parts: what it compiled is
    kept until it runs on the other shapes.
    """
    with torch.device("meta"):  # a model without values: only shapes are computed
        shadow = type(torch_module).from_config(torch_module.config)
    made: list[Case] = []
    for noise in noises:
        seen: set[str] = set()
        shapes = _shapes(shadow, noise)
        for path, module in torch_module.named_modules():
            signature = _signature(module)
            if signature not in seen and path in shapes:
                seen.add(signature)
                given = enumerate(shapes[path])
                args = tuple(normal(shape, seed + i, noise.mean) for i, shape in given)
                made.append(_case(path, noise, args, (call_torch or call, call)))
    return tuple(made)


def _case(
    path: str, noise: Noise, args: tuple[Any, ...], calls: tuple[Callable[..., Any], ...]
) -> Case:
    large = noise.mean != 0.0
    return Case(
        f"{'call' if path else 'forward'}/{noise.name}",
        args,
        path=path,
        torch=calls[0] if path else forward_torch,
        nnx=calls[1] if path else forward_nnx,
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


def _shapes(model: Any, noise: Noise) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """By path, the shapes of the arrays that one call of each module gets; dropout left out."""
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
    paths = {module: path for path, module in model.named_modules()}

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        arrays = tuple(tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor))
        if noise.last or paths[module] not in shapes:
            shapes[paths[module]] = arrays

    called = [module for module in paths if not isinstance(module, torch.nn.Dropout)]
    hooks = [module.register_forward_pre_hook(note) for module in called]
    try:
        with torch.no_grad():
            model(torch.zeros(noise.shape, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return shapes
