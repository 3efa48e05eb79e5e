"""`jaxvae reconstruct`: a video or an image through the autoencoder and back."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from jaxvae.io.video import Writer, check_output, to_pixels

if TYPE_CHECKING:
    from jaxvae.io.video import Frames
    from jaxvae.models.latents import Config


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@with_model
@with_clip
@click.option(
    "--compare",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a picture: frames, their reconstructions, and the differences, four-fold.",
)
@QUIET
@JSON
def reconstruct(
    source: Path,
    target: Path,
    first: int,
    frames: int | None,
    size: tuple[int, int] | None,
    compare: Path | None,
    quiet: bool,
    as_json: bool,
    **model: Any,
) -> None:
    """Encode a video or image, decode it, and write the result.

    What is decoded is the mean of the latent. Frames that do not come back one for one are left out
    at the end, and sound is. PSNR and SSIM are of the 8-bit frames before TARGET is coded.

    \b
    Example:
      jaxvae reconstruct clip.mp4 back.mp4 --weights path/to/vae
    """
    check_output(target)
    refuse_source(source, target)
    if compare is not None:
        _check_picture(source, target, compare)
    from jaxvae.io.quality import Gathered  # what it needs may be lacking: said before the work

    vae = load_tiled(**model)
    clip = clip_of(vae, source, first, frames, size)
    kept = returned(clip.frames, vae.config)
    left_out = clip.frames - kept
    clip = replace(clip, frames=kept)

    from jaxvae.cli.coding import decoded, encoded

    began = time.monotonic()
    gathered, shown = Gathered(), _Shown(kept)
    with progress(quiet or as_json) as bars, Writer(target, kept, clip.size, clip.rate) as file:
        latent = encoded(vae, clip, bars, mean=True)
        done = 0
        originals = _regrouped(clip)
        for part in decoded(vae, latent, kept, bars):
            pixels = to_pixels(part)
            wanted = originals(len(pixels))
            file.write(pixels)
            gathered.add(pixels, wanted)
            shown.add(done, wanted, pixels)
            done += len(pixels)
        if compare is not None:
            shown.write(compare)
    psnr, ssim = gathered.quality()
    facts = {
        "frames": kept,
        "left_out": left_out,
        "size": f"{clip.size[0]}x{clip.size[1]}",
        "latent": "x".join(map(str, latent.shape[1:])),
        "psnr_db": psnr,
        "ssim": ssim,
        "seconds": time.monotonic() - began,
        "wrote": str(target),
    }
    report(facts | ({"picture": str(compare)} if compare else {}), quiet=quiet, as_json=as_json)


def _check_picture(source: Path, target: Path, picture: Path) -> None:
    if picture.suffix != ".png":
        raise click.UsageError(f"--compare {picture}: expected a name that ends in .png")
    check_output(picture)
    refuse_source(source, picture)
    if picture.resolve() == target.resolve():
        raise click.UsageError(f"--compare {picture}: is TARGET too; expected another file")


def returned(frames: int, config: "Config") -> int:
    """The largest number of frames, up to `frames`, that come back as that many."""
    known = config.latent_frames, config.video_frames
    fitting = (n for n in range(frames, 0, -1) if n == known[1](known[0](n)))
    return next(fitting, 1)


def _regrouped(clip: Any) -> Any:
    """A function that returns the next frames of a clip, however many are asked for."""
    import numpy as np

    frames = (frame for part in clip.parts() for frame in part)
    return lambda count: np.stack([next(frames) for _ in range(count)])


class _Shown:
    """The first, the middle and the last frame of both sides."""

    def __init__(self, frames: int) -> None:
        self._wanted = sorted({0, frames // 2, frames - 1})
        self._rows: list[Any] = []

    def add(self, start: int, original: "Frames", found: "Frames") -> None:
        import numpy as np

        for index in self._wanted:
            if start <= index < start + len(found):
                pair = original[index - start], found[index - start]
                gap = np.abs(pair[0].astype(int) - pair[1])
                self._rows.append(np.hstack([*pair, np.minimum(4 * gap, 255).astype(np.uint8)]))

    def write(self, path: Path) -> None:
        import io

        import imageio.v3 as imageio
        import numpy as np

        buffer = io.BytesIO()
        imageio.imwrite(buffer, np.vstack(self._rows), extension=".png")
        write_bytes(path, buffer.getvalue())
