"""Options that commands have in common, and the model and the clip that they ask for."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jaxvae.io.diffusers_folder import SHARDED_NAME, split_source
from jaxvae.io.video import Video, find_video, size_of
from jaxvae.models.config import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

    from jaxvae.models.autoencoder import Autoencoder

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType[tuple[int, int]]):
    """Height and width in pixels, as in 480x720."""

    name = "HxW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Parse; at least one pixel each way."""
        if isinstance(value, tuple):
            return value
        try:
            return size_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


WEIGHTS = click.option(
    "--weights",
    required=True,
    metavar="DIR_OR_REPO",
    help="A folder that diffusers saved or `jaxvae convert` wrote, or a repository of the Hub; "
    "OWNER/NAME:vae is the folder `vae` in one.",
)
REVISION = click.option("--revision", help="Branch, tag or commit of the repository.")
OFFLINE = click.option(
    "--local-files-only", is_flag=True, help="Download nothing: what is there must do."
)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(("float32", "bfloat16")),
    default="float32",
    show_default=True,
    help="What is computed in.",
)
PRECISION = click.option(
    "--precision",
    type=click.Choice(("default", "high", "highest")),
    default="highest",
    show_default=True,
    help="Of float32 products on accelerators.",
)
FIRST = click.option("--first", type=click.IntRange(0), default=0, help="Frame to begin with.")
FRAMES = click.option("--frames", type=click.IntRange(1), help="At most so many  [default: all]")
SIZE = click.option(
    "--size", type=Size(), help="The window in the middle of the frames  [default: all of them]"
)
QUIET = click.option("--quiet", is_flag=True, help="No progress, and nothing printed.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else."
)
TILING = click.option(
    "--tiling",
    is_flag=True,
    help="Cut frames into overlapping tiles of the model's own size: less memory, other values.",
)
TILE = click.option("--tile", type=Size(), help="The same, with tiles of this size.")


def with_model(command: Command) -> Command:
    """Add the options that `load_tiled` takes."""
    for option in (TILE, TILING, PRECISION, DTYPE, OFFLINE, REVISION, WEIGHTS):
        command = option(command)
    return command


def with_clip(command: Command) -> Command:
    """Add the options that `clip_of` takes."""
    for option in (SIZE, FRAMES, FIRST):
        command = option(command)
    return command


def load(
    weights: str,
    revision: str | None,
    local_files_only: bool,
    dtype: str = "float32",
    precision: Any = "highest",
    param_dtype: str | None = None,
    finite: bool = True,
) -> "Autoencoder":
    """Return the model of a folder or a repository.

    Raises WeightsError if it cannot be read, or with `finite` has values that are not.
    """
    from jaxvae.io.weights import refuse_nonfinite
    from jaxvae.models.loading import from_pretrained, load_checkpoint

    if (Path(weights) / SHARDED_NAME).exists():
        model = load_checkpoint(weights, None, dtype, precision, param_dtype)
    else:
        model = from_pretrained(
            *split_source(weights), dtype, precision, revision, local_files_only, param_dtype
        )
    if finite:
        refuse_nonfinite(model, weights)
    return model


def load_tiled(*, tiling: bool, tile: tuple[int, int] | None, **model: Any) -> "Autoencoder":
    """Return what `load` returns, with tiling on where it was asked for."""
    vae = load(**model)
    config = vae.config
    channels = vae.channels("encode"), config.out_channels // getattr(config, "patch", 1) ** 2
    if channels != (3, 3):
        raise ConfigError(
            f"{model['weights']}: takes {channels[0]} channels and returns {channels[1]}; commands"
            " read and write 3, red, green and blue: use the model from Python"
        )
    if tile is not None or tiling:
        set_tiles(vae, tile)
    return vae


def set_tiles(model: "Autoencoder", tile: tuple[int, int] | None) -> None:
    """Switch tiling on, with tiles of this size or of the model's own.

    Tiles overlap by about the part that they do at first, but by whole latents: otherwise what
    comes out has another size than what went in. Raises UsageError for a tile that is too small, or
    no multiple of what the model compresses it by, and for a config that says another ratio.
    """
    step = model.config.spatial_ratio
    sizes, parts = model.tile_plan()
    sizes = tile or tuple(size - size % step for size in sizes)
    if any(size % step or size < 2 * step for size in sizes):
        own = "" if tile else ", which the config says; give --tile"
        raise click.UsageError(
            f"tiles of {_x(sizes)}{own}: expected multiples of {step}, at least two"
        )
    said = getattr(model.config, "scale_factor_spatial", step)
    if said != step:
        raise click.UsageError(
            f"tiles: the config's scale_factor_spatial is {said}, and this model compresses by"
            f" {step}: tiles would come out in another size, as in diffusers; correct the config"
        )
    height, width = (_overlap(*each, step) for each in zip(sizes, parts, strict=True))
    try:
        model.set_tiles(sizes, (height, width))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _overlap(size: int, part: float, step: int) -> float:
    """Return the part nearest to `part` that is as many whole latents after rounding as before."""
    tile = size // step

    def exact(count: int) -> bool:
        overlap = count / tile
        # both products are cut down to whole lines, of latents and of pixels
        return all(
            int(lines * (1 - overlap)) == lines - shared and int(lines * overlap) == shared
            for lines, shared in ((tile, count), (size, count * step))
        )

    counts = sorted(range(1, tile), key=lambda count: abs(count / tile - part))
    return next(filter(exact, counts)) / tile  # there is one for every size up to 400 latents


def clip_of(
    model: "Autoencoder",
    path: Path,
    first: int,
    frames: int | None,
    size: tuple[int, int] | None,
) -> Video:
    """Return the part of a video that the model can take.

    Height and width are cut down to multiples of what it compresses them by, around the middle.
    Raises VideoError if the file cannot be read, and UsageError for a window that is larger than
    the frames or smaller than the model takes.
    """
    found = find_video(path, first, frames)
    step = model.config.spatial_ratio
    wanted = size or found.size
    if wanted[0] > found.size[0] or wanted[1] > found.size[1]:
        raise click.UsageError(f"--size {_x(wanted)}: {path} has frames of {_x(found.size)}")
    height, width = (length - length % step for length in wanted)
    if not height or not width:
        raise click.UsageError(f"frames of {_x(wanted)}: this model needs at least {step}x{step}")
    return found.window((height, width))


def _x(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def progress(quiet: bool) -> "Progress":
    """Return a bar with the time left, on a terminal that nobody has asked to be quiet."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, disable=quiet or not console.is_terminal, transient=True)


def report(lines: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Print what a command did: a line for each fact, or one JSON document."""
    if as_json:
        # JSON has no infinity, which is the PSNR of frames that came back as they were, and no NaN
        known = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in lines.items()
        }
        click.echo(json.dumps(known, indent=2, default=str, allow_nan=False))
    elif not quiet:
        width = max(map(len, lines))
        for name, value in lines.items():
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            click.echo(f"{name.replace('_', ' '):<{width}}  {text}", file=sys.stdout)
