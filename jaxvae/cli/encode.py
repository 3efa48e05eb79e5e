"""`jaxvae encode`: a video to its latent."""

import time
from pathlib import Path
from typing import Any

import click

from jaxvae.cli.files import refuse_source, write_bytes
from jaxvae.cli.options import (
    JSON,
    QUIET,
    clip_of,
    load_tiled,
    progress,
    report,
    with_clip,
    with_model,
)
from jaxvae.io.video import VideoError


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@with_model
@with_clip
@QUIET
@JSON
def encode(
    source: Path,
    target: Path,
    first: int,
    frames: int | None,
    size: tuple[int, int] | None,
    quiet: bool,
    as_json: bool,
    **model: Any,
) -> None:
    """Write the latent of a video or image to a safetensors file.

    TARGET holds `mean` and `logvar`, (1, frames, height, width, channels), neither scaled nor
    sampled, and says in its metadata how many frames a second the video has.

    \b
    Example:
      jaxvae encode clip.mp4 latent.safetensors --weights path/to/vae
    """
    if target.suffix != ".safetensors" or not target.parent.is_dir():
        raise VideoError(f"{target}: expected a name in a folder that exists, with .safetensors")
    refuse_source(source, target)
    vae = load_tiled(**model)
    clip = clip_of(vae, source, first, frames, size)

    import numpy as np
    from safetensors.numpy import save

    from jaxvae.cli.coding import encoded
    from jaxvae.models.posterior import DiagonalGaussian

    began = time.monotonic()
    with progress(quiet or as_json) as bars:
        posterior = DiagonalGaussian(encoded(vae, clip, bars))
    arrays = {name: np.asarray(getattr(posterior, name)) for name in ("mean", "logvar")}
    about = {
        "layout": "batch, frames, height, width, channels",
        "rate": str(clip.rate),
        "frames": str(clip.frames),
        "source": clip.path.name,
    }
    write_bytes(target, save(arrays, about))
    facts = {
        "frames": clip.frames,
        "size": f"{clip.size[0]}x{clip.size[1]}",
        "latent": "x".join(map(str, arrays["mean"].shape[1:])),
        "seconds": time.monotonic() - began,
        "wrote": str(target),
    }
    report(facts, quiet=quiet, as_json=as_json)
