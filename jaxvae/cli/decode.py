"""`jaxvae decode`: a latent to its video."""

import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxvae.cli.files import refuse_source
from jaxvae.cli.options import JSON, QUIET, load_tiled, progress, report, with_model
from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.messages import shown
from jaxvae.io.video import RATE, Writer, check_output, to_pixels

if TYPE_CHECKING:
    import numpy as np

NAMES = ("latent", "mean")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@with_model
@click.option("--rate", type=float, help="Frames a second  [default: what SOURCE says, or 24]")
@QUIET
@JSON
def decode(
    source: Path, target: Path, rate: float | None, quiet: bool, as_json: bool, **model: Any
) -> None:
    """Decode a latent and write the video or image.

    SOURCE is what `jaxvae encode` wrote, or has an array `latent` or `mean` of the same layout, (1,
    frames, height, width, channels), not scaled.

    \b
    Example:
      jaxvae decode latent.safetensors clip.mp4 --weights path/to/vae
    """
    if rate is not None and not 1 / 1000 <= rate < 1000:
        raise click.UsageError(f"--rate {rate}: expected frames a second, from 0.001 to below 1000")
    check_output(target)
    refuse_source(source, target)
    latent, said = _latent(source)
    vae = load_tiled(**model)
    channels = vae.config.latent_channels
    if latent.shape[-1] != channels:
        raise WeightsError(
            f"{source}: the latent has shape {latent.shape}; this model decodes (1, frames, height,"
            f" width, {channels}), channels last"
        )

    from jaxvae.cli.coding import decoded

    began = time.monotonic()
    step = vae.config.spatial_ratio
    size = (latent.shape[2] * step, latent.shape[3] * step)
    frames = vae.config.video_frames(latent.shape[1])
    per_second = said if rate is None else Fraction(rate).limit_denominator(1001)
    with progress(quiet or as_json) as bars, Writer(target, frames, size, per_second) as file:
        for part in decoded(vae, latent, frames, bars):
            file.write(to_pixels(part))
    facts = {
        "frames": frames,
        "size": f"{size[0]}x{size[1]}",
        "seconds": time.monotonic() - began,
        "wrote": str(target),
    }
    report(facts, quiet=quiet, as_json=as_json)


def _latent(path: Path) -> tuple["np.ndarray[Any, Any]", Fraction]:
    """The latent of a file, and how many frames a second its video has."""
    import jax.numpy as jnp  # NumPy knows bfloat16 by its name only after this
    import numpy as np
    from safetensors import SafetensorError, safe_open

    if path.exists() and not path.is_file():
        raise WeightsError(f"{path}: expected a safetensors file, found what is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            about = file.metadata() or {}
            name = next((name for name in NAMES if name in names), None)
            if name is None:
                found = shown(", ".join(names)) or "none"
                raise WeightsError(f"{path}: expected an array `latent` or `mean`, found {found}")
            latent = file.get_tensor(name)
    except (SafetensorError, OSError, TypeError) as error:
        raise WeightsError(f"{path}: not a readable safetensors file ({error})") from error
    if latent.ndim != 5 or latent.shape[0] != 1 or not latent.size:
        raise WeightsError(
            f"{path}: `{name}` has shape {latent.shape}; expected (1, frames, height, width,"
            " channels), none of them 0"
        )
    if not jnp.issubdtype(latent.dtype, jnp.floating):
        raise WeightsError(
            f"{path}: `{name}` holds {latent.dtype} values; expected floating-point numbers"
        )
    with np.errstate(over="ignore"):  # it is infinite then
        finite = np.isfinite(latent.astype(np.float32)).all()
    if not finite:
        raise WeightsError(f"{path}: `{name}` has values that are no finite numbers")
    return latent, _rate(about.get("rate", RATE), path)


def _rate(text: str, path: Path) -> Fraction:
    """Frames a second, as the file at `path` has it."""
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not 0 < rate < 1000:
        raise WeightsError(f"{path}: rate {shown(repr(text))} is not a number of frames a second")
    return rate
