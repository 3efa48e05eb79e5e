"""Measurements of what an earlier port's documents claim: see `docs/claims.md`.

    python -m tools.claims NAME

measures one. Models are small or single layers with the
sizes of the full model; weights are random, of seed 0.
"""

import inspect
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from tools.tables import publish

HEAD = ("what", "measured")
HEADS = (HEAD,)
Figures = dict[str, float | int | str | bool]

CLAIMS: dict[str, Callable[[], Figures]] = {}


def claim(function: Callable[[], Figures]) -> Callable[[], Figures]:
    """Register a claim under the function's name."""
    CLAIMS[function.__name__] = function
    return function


@claim
def pooling() -> Figures:
    """Encoding with the mistaken time pooling, and without."""
    reference, port = _small()
    video = _video(9, 32, 32)
    theirs = _encoded(reference, video)
    ours = np.asarray(port.encode(video).mean)
    wrong = np.asarray(_mistaken(port).encode(video).mean)
    return {
        "MAE, mistaken": _mae(theirs, wrong),
        "correlation within a channel, mistaken": _correlation(theirs, wrong),
        "MAE": _mae(theirs, ours),
    }


def _mistaken(port: Any) -> Any:
    """The port with a reshape where axes had to be moved."""
    import jax.numpy as jnp
    from flax import nnx

    def mixed(x: Any) -> Any:
        b, t, h, w, c = x.shape
        rows = x.reshape(b * h * w, t, c)
        first, rest = rows[:, : t % 2], rows[:, t % 2 :]
        pooled = rest.reshape(b * h * w, t // 2, 2, c).mean(2)
        return jnp.concatenate([first, pooled], axis=1).reshape(b, -1, h, w, c)

    class Mistaken(nnx.Module):
        def __init__(self, right: Any) -> None:
            self.conv, self.compress_time = right.conv, right.compress_time

        def __call__(self, x: Any) -> Any:
            if self.compress_time and x.shape[1] > 1:
                x = mixed(x)
            x = jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))
            b, t, *image = x.shape
            y = self.conv(x.reshape(b * t, *image))
            return y.reshape(b, t, *y.shape[1:])

    port = nnx.clone(port)
    for block in port.encoder.down_blocks:
        if block.downsamplers is not None:
            block.downsamplers[0] = Mistaken(block.downsamplers[0])
    return port


@claim
def coarse_products() -> Figures:
    """The first convolution of the full model and a group norm after it, in float32 and with the
    products that a TPU makes by default.
    """
    import jax
    import jax.numpy as jnp
    import torch
    from flax import nnx

    from parity.extras.emulation import emulated

    torch.manual_seed(0)
    conv, norm = torch.nn.Conv3d(3, 128, 3, padding=1), torch.nn.GroupNorm(32, 128, eps=1e-6)
    video = np.random.default_rng(0).standard_normal((1, 5, 24, 24, 3)).astype(np.float32)
    with torch.no_grad():
        first = conv(_first(video))
        second = norm(first)
    kernel = jnp.asarray(conv.weight.numpy(force=True).transpose(2, 3, 4, 1, 0))
    bias = jnp.asarray(conv.bias.numpy(force=True))[None, None, None, None]
    ported = nnx.GroupNorm(
        128, num_groups=32, epsilon=1e-6, use_fast_variance=False, rngs=nnx.Rngs(0)
    )

    def run(precision: str) -> tuple[float, float]:
        y = jax.lax.conv_general_dilated(
            jnp.asarray(video), kernel, (1, 1, 1), "SAME",
            dimension_numbers=("NTHWC", "THWIO", "NTHWC"), precision=precision,
        )  # fmt: skip
        return _mae(_last(first), y + bias), _mae(_last(second), ported(y + bias))

    with emulated("tpu-default"):
        coarse, fine = run("default"), run("highest")
    return {
        "conv MAE, TPU default": coarse[0],
        "conv MAE, highest": fine[0],
        "norm after it MAE, TPU default": coarse[1],
        "norm after it MAE, highest": fine[1],
    }


@claim
def group_norm() -> Figures:
    """GroupNorm with channels first and last, against PyTorch and each other."""
    import jax.numpy as jnp
    import torch

    x = (0.5 + 2 * np.random.default_rng(0).standard_normal((1, 3, 16, 16, 64))).astype(np.float32)
    theirs = _last(torch.nn.functional.group_norm(_first(x), 8, eps=1e-6))

    def normed(y: Any, axes: tuple[int, ...]) -> Any:
        y = y - y.mean(axes, keepdims=True)
        return y / jnp.sqrt((y * y).mean(axes, keepdims=True) + 1e-6)

    last = normed(jnp.asarray(x).reshape(1, -1, 8, 8), (1, 3)).reshape(x.shape)
    moved = jnp.moveaxis(jnp.asarray(x), -1, 1)
    first = jnp.moveaxis(normed(moved.reshape(1, 8, -1), (2,)).reshape(moved.shape), 1, -1)
    return {
        "MAE, channels last": _mae(theirs, last),
        "MAE, channels first": _mae(theirs, first),
        "between them": _mae(first, last),
    }


@claim
def grades() -> Figures:
    """The grades of the figures that were called excellent, attention and production-usable."""
    from parity.judge.verdict import grade

    return {f"MAE {mae:g}": grade(mae) for mae in (8.8e-4, 1.2e-2, 0.05, 0.3, 0.6)}


@claim
def frames() -> Figures:
    """Frames of 49 encoded and decoded again; 13 latent frames decoded one by one."""
    import torch

    reference, port = _small()
    latent = np.random.default_rng(0).standard_normal((1, 13, 4, 4, 8)).astype(np.float32)
    whole = np.asarray(port.decode(latent))
    cache, parts = None, []
    with torch.no_grad():
        for one in _first(latent).split(1, dim=2):
            part, cache = reference.decoder(one, conv_cache=cache)
            parts.append(part)
        by_one = _last(torch.cat(parts, dim=2))
    doubled = np.concatenate([*port.decode_stream(latent, single_latents=True)], axis=1)
    return {
        "latents of 49 frames": port.encode(_video(49, 16, 16)).mean.shape[1],
        "frames of 13 latents": whole.shape[1],
        "frames one by one": by_one.shape[1],
        "frames one by one, each doubled": doubled.shape[1],
        "largest difference in the first frame": float(np.abs(doubled[:, 0] - whole[:, 0]).max()),
        "largest value there": float(np.abs(whole[:, 0]).max()),
    }


@claim
def tiles() -> Figures:
    """The reference's tiles against its whole; the port's tiles against those; without writing the
    blended part back into the tile.
    """
    reference, port = _small()
    latent = np.random.default_rng(0).standard_normal((1, 1, 16, 16, 8)).astype(np.float32)
    whole = _decoded(reference, latent)
    for vae in (reference, port):  # diffusers' own factors fit its own sizes of tiles only
        vae.enable_tiling(32, 32, tile_overlap_factor_height=0.25, tile_overlap_factor_width=0.25)
    theirs = _decoded(reference, latent)
    ours = np.asarray(port.decode(latent))
    for name in ("blend_v", "blend_h"):
        blend = getattr(reference, name)
        setattr(reference, name, lambda a, b, n, blend=blend: blend(a, b.clone(), n))
    without = _decoded(reference, latent)
    return {
        "tiles against whole": float(np.abs(theirs - whole).max()),
        "the port's tiles": float(np.abs(ours - theirs).max()),
        "without writing back": float(np.abs(without - theirs).max()),
        "largest value": float(np.abs(whole).max()),
    }


@claim
def reference_facts() -> Figures:
    """Facts of the reference's source where it was described otherwise."""
    import torch

    reference, _ = _small(quantised=True)
    given: dict[str, Any] = {}
    norm = reference.decoder.up_blocks[0].resnets[0].norm1
    hooks = [
        reference.post_quant_conv.register_forward_hook(lambda m, x, y: given.update(after=y)),
        norm.register_forward_pre_hook(lambda m, x: given.update(zq=x[1])),
    ]
    latent = torch.randn(1, 3, 1, 2, 2)
    with torch.no_grad():
        reference.decode(latent)
    for hook in hooks:
        hook.remove()
    down = reference.encoder.down_blocks[0].downsamplers[0].conv
    return {
        "mode of interpolate": inspect.signature(torch.nn.functional.interpolate)
        .parameters["mode"]
        .default,
        "the downsampler's convolution": type(down).__name__,
        "zq is what post_quant_conv gave": bool(torch.equal(given["zq"], given["after"])),
        "zq is the latent": bool(torch.equal(given["zq"], latent)),
    }


@claim
def counterparts() -> Figures:
    """Functions that were given as equivalent."""
    import jax
    import jax.numpy as jnp
    import torch

    x = np.linspace(-4, 4, 1001, dtype=np.float32)
    gelu = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    row = np.arange(5, dtype=np.float32)
    picked = torch.nn.functional.interpolate(torch.from_numpy(row[None, None]), size=8)
    resized = jax.image.resize(row, (8,), "nearest")
    doubled = torch.nn.functional.interpolate(torch.from_numpy(row[None, None]), scale_factor=2)
    ratio = torch.var(torch.from_numpy(row)) / float(jnp.var(row))
    return {
        "gelu, largest difference": float(np.abs(np.asarray(jax.nn.gelu(x)) - gelu).max()),
        "var of 5 values, ratio": float(ratio),
        "nearest 5 to 8, other entries": int((np.asarray(resized) != picked.numpy()[0, 0]).sum()),
        "nearest 5 to 10, other entries": int(
            (np.asarray(jax.image.resize(row, (10,), "nearest")) != doubled.numpy()[0, 0]).sum()
        ),
    }


@claim
def merging() -> Figures:
    """Weights passed to `nnx.merge` as a dict, with one name that the model does not have."""
    import jax.numpy as jnp
    from flax import nnx

    class Two(nnx.Module):
        def __init__(self) -> None:
            self.a, self.b = nnx.Param(jnp.zeros(2)), nnx.Param(jnp.zeros(2))

    structure, _ = nnx.split(Two())
    held = {"b": jnp.full(2, 1.0), "c": jnp.full(2, 2.0)}  # `a` was renamed to `c`
    try:
        model: Any = nnx.merge(structure, held)
    except Exception as error:
        return {"refused with": type(error).__name__}
    return {name: float(jnp.asarray(getattr(model, name)[...])[0]) for name in ("a", "b")}


@claim
def compiled() -> Figures:
    """Seconds to encode with the small model: operation by operation, and compiled."""
    import jax

    _, port = _small()
    video = _video(9, 32, 32)

    def seconds() -> float:
        taken = []
        for _ in range(6):  # the first one compiles
            start = time.perf_counter()
            jax.block_until_ready(port.encode(video).mean)
            taken.append(time.perf_counter() - start)
        return min(taken)

    once = seconds()
    with jax.disable_jit():
        eager = seconds()
    return {"operation by operation, s": eager, "compiled, s": once, "ratio": eager / once}


def _small(quantised: bool = False) -> tuple[Any, Any]:
    """diffusers' model in the ladder's small configuration, and the port with its weights."""
    from jaxvae.pairs.cogvideox.pair import PAIR

    if not quantised:
        options = PAIR.resolved({"config": "small"})
        reference = PAIR.make_torch(options, 0)
        return reference, PAIR.make_nnx(options, reference)
    import diffusers
    import torch

    torch.manual_seed(0)
    config = dict(PAIR.make_torch(PAIR.resolved({"config": "small"}), 0).config)
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    # that convolution has as many channels as the video
    config |= {"use_post_quant_conv": True, "latent_channels": config["out_channels"]}
    return diffusers.AutoencoderKLCogVideoX(**config).eval(), None


def _video(frames: int, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (1, frames, height, width, 3)).astype(np.float32)


def _first(array: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(array), -1, 1)))


def _last(tensor: Any) -> np.ndarray:
    return np.moveaxis(tensor.numpy(force=True), 1, -1)


def _encoded(reference: Any, video: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return _last(reference.encode(_first(video)).latent_dist.mean)


def _decoded(reference: Any, latent: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return _last(reference.decode(_first(latent)).sample)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Without what the channels' means have in common."""
    a, b = (x - x.mean(axis=(0, 1, 2, 3)) for x in (a, b))
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def _mae(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).mean())


def shown(figure: float | int | str | bool) -> str:
    """A figure as the document has it."""
    return f"{figure:.3g}" if type(figure) is float else str(figure)


@click.command()
@click.argument("name", type=click.Choice(sorted(CLAIMS)))
def main(name: str) -> None:
    """Measure what there is to say of one claim."""
    publish(HEAD, [(what, shown(figure)) for what, figure in CLAIMS[name]().items()])


if __name__ == "__main__":
    main()
