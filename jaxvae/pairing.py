"""The CogVideoX pair and its ladder, found by the harness as `cogvideox`.

The only file of the package that imports torch, diffusers and parity.
"""

import contextlib
import functools
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import torch
from flax import nnx

from jaxvae.autoencoder import AutoencoderKLCogVideoX
from jaxvae.config import DOWN_BLOCK, UP_BLOCK, CogVideoXVAEConfig, ConfigError
from jaxvae.weights import WeightsError, from_torch_state
from parity.errors import InputError
from parity.inputs import LARGE_MEAN, normal
from parity.records import Case, Clip, Pair, Rung

SMALL = CogVideoXVAEConfig(
    down_block_types=(DOWN_BLOCK,) * 3,
    up_block_types=(UP_BLOCK,) * 3,
    block_out_channels=(16, 32, 32),
    latent_channels=8,
    layers_per_block=1,
    norm_num_groups=8,
)
"""Two resampling blocks that both compress time, a shortcut, four channels a group."""

CONFIGS = {"default": CogVideoXVAEConfig(), "small": SMALL}

RUNGS = (
    Rung("conv", ("CogVideoXCausalConv3d", "CogVideoXSafeConv3d", "Conv2d"), 1e-6),
    Rung("groupnorm", ("GroupNorm", "CogVideoXSpatialNorm3D"), 1e-5),
    Rung("resnet", ("CogVideoXResnetBlock3D", "SiLU", "Mish", "GELU", "ReLU", "Dropout"), 1e-4),
    Rung(
        "block",
        (
            "CogVideoXDownBlock3D",
            "CogVideoXMidBlock3D",
            "CogVideoXUpBlock3D",
            "CogVideoXDownsample3D",
            "CogVideoXUpsample3D",
        ),
        1e-3,
    ),
    Rung("encoder", ("CogVideoXEncoder3D", "CogVideoXDecoder3D"), 1e-2, free=True),
    Rung("vae", ("AutoencoderKLCogVideoX",), 1e-1, free=True),
)

UNUSED_CACHE = (
    "a kernel of size 1 in time needs no cache; PyTorch keeps its input and never reads it"
)

DECLARED = dict.fromkeys(("*.conv_y#1", "*.conv_b#1", "*#*conv_y", "*#*conv_b"), UNUSED_CACHE)

R_LIMIT = 2.0
"""On inputs of a large mean the port is at most twice as far from float64 as PyTorch."""


def make_torch(weights: str | None, config: str | None, seed: int) -> Any:
    """diffusers' model: the checkpoint `weights`, or random weights of `config`.

    Random weights are diffusers' own initialisation under `torch.manual_seed(seed)`, then norm
    weights 1+0.3N and biases 0.2N: at 1 and 0 they would hide swapped or unused ones.
    """
    with _quiet():
        import diffusers

        reference: Any = diffusers.AutoencoderKLCogVideoX
        if weights is not None:
            try:
                loaded = reference.from_pretrained(
                    weights, use_safetensors=True, low_cpu_mem_usage=False,
                    torch_dtype=torch.float32,
                )  # fmt: skip
            except (OSError, ValueError, RuntimeError, TypeError) as error:
                reason = str(error).strip().splitlines()[0]
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


def make_nnx(weights: str | None, config: str | None, torch_module: Any) -> AutoencoderKLCogVideoX:
    """The port: from the checkpoint `weights`, or with the weights of `torch_module`."""
    try:
        if weights is not None:
            return AutoencoderKLCogVideoX.from_pretrained(weights)
        return from_torch_state(read_config(config), StateDict(torch_module))
    except (ConfigError, WeightsError) as error:
        raise InputError(str(error)) from error


def read_config(config: str | None) -> CogVideoXVAEConfig:
    """A configuration by name, or from a diffusers config.json."""
    name = config or "default"
    if name in CONFIGS:
        return CONFIGS[name]
    if not Path(name).is_file():
        known = ", ".join(sorted(CONFIGS))
        raise InputError(f"no configuration {name!r}; expected {known} or a config.json file")
    try:
        return CogVideoXVAEConfig.from_json(name)
    except ConfigError as error:
        raise InputError(str(error)) from error


def randomise(model: torch.nn.Module) -> None:
    """Norm weights 1+0.3N, every bias 0.2N, from torch's current random state."""
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias":
                    parameter.normal_().mul_(0.2)
                elif parameter.ndim == 1:
                    parameter.normal_().mul_(0.3).add_(1.0)


class StateDict(Mapping[str, Any]):
    """A module's tensors as NumPy arrays that share their memory."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = module.state_dict()

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def encode_torch(model: Any, sample: Any) -> dict[str, Any]:
    """Mean and clamped log-variance of the reference's posterior."""
    posterior = model.encode(sample).latent_dist
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def encode_nnx(model: Any, x: Any) -> dict[str, Any]:
    """The same of the port's."""
    posterior = model.encode(x)
    return {"mean": posterior.mean, "logvar": posterior.logvar}


def decode_torch(model: Any, z: Any) -> Any:
    """The reference's video."""
    return model.decode(z).sample


def forward_torch(model: Any, sample: Any) -> Any:
    """The reference's reconstruction."""
    return model(sample).sample


METHODS: Mapping[str, tuple[Any, Any]] = {
    "encode": (encode_torch, encode_nnx),
    "decode": (decode_torch, "decode"),
    "forward": (forward_torch, "__call__"),
}


def cases(torch_module: Any, clip: Clip, seed: int) -> tuple[Case, ...]:
    """The clip through encode, decode and the whole, then noise through every kind of module.

    The decoder gets the reference's latents of the clip. The whole is recorded at its output
    alone: its inner calls are those of the other two.
    """
    halvings = len(torch_module.config.block_out_channels) - 1
    height, width = clip.frames.shape[-2:]
    if min(height, width) < 2**halvings:
        raise InputError(
            f"frames of {height}x{width}: this model halves them {halvings} times and needs at "
            f"least {2**halvings}x{2**halvings}"
        )
    with torch.no_grad():
        latents = torch_module.encode(torch.from_numpy(clip.frames)).latent_dist.mode().numpy()
    inputs = {"encode": clip.frames, "decode": latents, "forward": clip.frames}
    real = tuple(
        Case(
            f"{name}/clip", (inputs[name],), torch=methods[0], nnx=methods[1],
            depth=0 if name == "forward" else None,
        )
        for name, methods in METHODS.items()
    )  # fmt: skip
    return (*real, *synthetic(torch_module, seed))


def synthetic(torch_module: Any, seed: int) -> tuple[Case, ...]:
    """N(0, 1) and a large mean, odd and even T, batch 1 and 2, for each distinct module.

    Two modules are alike if class, shapes of parameters and settings are.
    """
    seen: set[str] = set()
    made: list[Case] = []
    variants = [
        (f"{name}-{parity}", mean, odd)
        for name, mean in (("normal", 0.0), ("mean30", LARGE_MEAN))
        for parity, odd in (("odd", True), ("even", False))
    ]
    for path, module in torch_module.named_modules():
        signature = _signature(module)
        shapes = _shapes(module, odd=True)
        if signature in seen or shapes is None:
            continue
        seen.add(signature)
        for name, mean, odd in variants:
            for method, shape in (_shapes(module, odd) or {}).items():
                args = tuple(normal(s, seed + i, mean) for i, s in enumerate(shape))
                made.append(_case(path, method, name, args, mean))
    return tuple(made)


def _case(path: str, method: str, name: str, args: tuple[Any, ...], mean: float) -> Case:
    reference, port = METHODS.get(method, (_call_torch, _call_nnx))
    return Case(
        f"{method}/{name}",
        args,
        path=path,
        torch=reference,
        nnx=port,
        depth=0,
        floor=True,
        r_limit=R_LIMIT if mean else None,
    )


def _call_torch(module: Any, inputs: Any, zq: Any = None) -> Any:
    return module(*_arguments(type(module).__name__.removeprefix("CogVideoX"), inputs, zq))


def _call_nnx(module: Any, inputs: Any, zq: Any = None) -> Any:
    # Compiled: op by op, each shape of each operation would be compiled on its own.
    graph, state = nnx.split(module)
    return _compiled(graph, state, _arguments(type(module).__name__, inputs, zq))


@functools.partial(jax.jit, static_argnums=0)
def _compiled(graph: Any, state: Any, arguments: tuple[Any, ...]) -> Any:
    return nnx.merge(graph, state)(*arguments)


def _arguments(kind: str, inputs: Any, zq: Any) -> tuple[Any, ...]:
    """Resnets and blocks have `temb` between the two; the model never uses it."""
    if zq is None:
        return (inputs,)
    return (inputs, zq) if kind == "SpatialNorm3D" else (inputs, None, zq)


def _signature(module: torch.nn.Module) -> str:
    settings = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, (bool, int, float, str, tuple)) and key != "training"
    }
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    inner = [type(child).__name__ for child in module.modules()]
    return json.dumps([inner, settings, shapes], default=str)


def _shapes(module: Any, odd: bool) -> dict[str, tuple[tuple[int, ...], ...]] | None:
    """Channel-first input shapes by method, `None` for a module that gets no noise."""
    batch, frames, latent_frames = (1, 5, 3) if odd else (2, 4, 2)
    kind = type(module).__name__

    def video(channels: int, t: int = frames, side: int = 8) -> tuple[int, ...]:
        return (batch, channels, t, side, side)

    if kind == "Conv2d":
        return {"call": ((batch, module.in_channels, 8, 8),)}
    if kind == "CogVideoXSafeConv3d":
        # The padding in time is its parent's: give it two frames more.
        return {"call": (video(module.in_channels, frames + 2),)}
    if kind == "CogVideoXCausalConv3d":
        return {"call": (video(module.conv.in_channels),)}
    if kind == "GroupNorm":
        return {"call": (video(module.num_channels),)}
    if kind in ("SiLU", "Mish", "GELU", "ReLU"):
        return {"call": (video(8),)}
    if kind == "CogVideoXSpatialNorm3D":
        zq = video(module.conv_y.conv.in_channels, latent_frames, 4)
        return {"call": (video(module.norm_layer.num_channels), zq)}
    if kind in ("CogVideoXDownsample3D", "CogVideoXUpsample3D"):
        return {"call": (video(module.conv.in_channels),)}
    if kind == "CogVideoXResnetBlock3D":
        return _conditioned(module, video(module.in_channels), video, latent_frames)
    if kind in ("CogVideoXDownBlock3D", "CogVideoXMidBlock3D", "CogVideoXUpBlock3D"):
        first = module.resnets[0]
        return _conditioned(first, video(first.in_channels), video, latent_frames)
    if kind == "CogVideoXEncoder3D":
        return {"call": (video(module.conv_in.conv.in_channels, side=16),)}
    if kind == "CogVideoXDecoder3D":
        return {"call": (video(module.conv_in.conv.in_channels, latent_frames, 4),)}
    if kind == "AutoencoderKLCogVideoX":
        # What encode makes of the sample has the shape of `latent`: the whole reuses both programs.
        side = 16 >> (len(module.config.block_out_channels) - 1)
        sample = video(module.config.in_channels, 9 if odd else 8, 16)
        latent = video(module.config.latent_channels, latent_frames, max(side, 1))
        return {"encode": (sample,), "decode": (latent,), "forward": (sample,)}
    return None


def _conditioned(
    resnet: Any, inputs: tuple[int, ...], video: Any, latent_frames: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    if resnet.spatial_norm_dim is None:
        return {"call": (inputs,)}
    return {"call": (inputs, video(resnet.spatial_norm_dim, latent_frames, 4))}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """diffusers warns at import and while it loads about things that a user cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


PAIR = Pair(
    name="cogvideox",
    make_torch=make_torch,
    make_nnx=make_nnx,
    cases=cases,
    rungs=RUNGS,
    declared=DECLARED,
    layout={"*": "move"},
)
