"""Slices and overlapping tiles of a video, and how their outputs become one again.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX.tiled_encode`, `tiled_decode`, `blend_v` and
`blend_h`; for slices its `encode` and `decode`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxvae.layers.rounding import add, narrow, wide_dtype, widen
from jaxvae.run.chunks import Bounds

Tile = Float[Array, "b t h w c"]
_HEIGHT, _WIDTH = 2, 3


@dataclass(frozen=True)
class Axis:
    """The tiles along height, or along width.

    `tiles` are (start, end) in the input. In the output the first `blend` lines of a tile are mixed
    with the last of the tile before it, of every tile at most `limit` lines are kept, and of all
    of them together at most `size`.
    """

    tiles: tuple[Bounds, ...]
    blend: int
    limit: int | None
    size: int | None = None


def one_tile(size: int) -> Axis:
    """Return the plan of an axis that is not cut at all."""
    return Axis(((0, size),), 0, None)


def plan_axis(
    axis: str, size: int, tile: int, output_tile: int, factor: float, smallest: int = 1
) -> Axis:
    """Cut `size` lines into tiles of `tile` lines, `output_tile` of the output each.

    Source: diffusers 0.42.1, `tiled_encode` and `tiled_decode`; each expression truncates where the
    source does. `factor` is the part of a tile that the next one overlaps. The last tiles are
    shorter: 33 lines in tiles of 16 by steps of 12 are 16, 16 and 9.

    Quirk of the source, kept: only where `tile` and `output_tile` have exactly the ratio of the
    model, and both products with `factor` are whole numbers, has the output the expected size.
    With 720x1280 frames and the tiles of 240x360 the output is right; 768x1360 in tiles of 150
    decode to 798x1456.

    Raises ValueError where the source fails: at tiles that do not advance, and at a tile of fewer
    lines than `smallest`.
    """
    step = int(tile * (1 - factor))
    blend = int(output_tile * factor)
    if step < 1:
        raise ValueError(
            f"tiling: tiles of {tile} in {axis} that overlap by {factor:g} advance by {step},"
            f" expected at least 1; enlarge the tile, or lower its overlap"
        )
    hint = f"change the tile ({tile}) or its overlap ({factor:g})"
    tiles = _cut(axis, size, (tile, step), smallest, hint)
    return Axis(tiles, blend, output_tile - blend)


def _cut(
    axis: str, size: int, tile: tuple[int, int], smallest: int, hint: str
) -> tuple[tuple[int, int], ...]:
    lines, step = tile
    tiles = tuple((start, min(start + lines, size)) for start in range(0, size, step))
    shortest = min(end - start for start, end in tiles)
    if shortest < smallest:
        raise ValueError(
            f"tiling: {size} in {axis} leaves a tile of {shortest}, and the model needs {smallest};"
            f" {hint}"
        )
    return tiles


def plan_stride(
    axis: str,
    size: int,
    tile: tuple[int, int],
    output_tile: tuple[int, int],
    output_size: int,
    smallest: int = 1,
) -> Axis:
    """Cut `size` lines into tiles, of which the `output_size` first lines of the output are kept.

    `tile` and `output_tile` are the lines of a tile, and by how many lines the next one begins
    later, in the input and in the output.

    Source: diffusers 0.42.1, `tiled_encode` and `tiled_decode` of `AutoencoderKLWan`. Raises
    ValueError where these fail: at tiles that do not advance, and at a tile of fewer lines than
    `smallest`.
    """
    step = tile[1]
    if step < 1 or output_tile[1] < 1:
        raise ValueError(
            f"tiling: tiles in {axis} advance by {step} of the input and {output_tile[1]} of the"
            f" output, expected at least 1; enlarge tile_sample_stride_{axis}"
        )
    hint = f"change tile_sample_min_{axis} or tile_sample_stride_{axis}"
    tiles = _cut(axis, size, tile, smallest, hint)
    return Axis(tiles, output_tile[0] - output_tile[1], output_tile[1], output_size)


def plan_tiles(
    size: tuple[int, int],
    tile: tuple[int, int],
    output_tile: tuple[int, int],
    factors: tuple[float, float],
    smallest: int = 1,
) -> tuple[Axis, Axis] | None:
    """Return what `plan_axis` makes of height and width; None if both fit into one tile."""
    if size[0] <= tile[0] and size[1] <= tile[1]:
        return None
    height, width = zip(size, tile, output_tile, factors, strict=True)
    return plan_axis("height", *height, smallest), plan_axis("width", *width, smallest)


class Window(NamedTuple):
    """A part of a video, through all its frames: samples, rows and columns, (start, end) each."""

    samples: Bounds
    rows: Bounds
    columns: Bounds


@dataclass(frozen=True)
class Windows:
    """Parts that go through the model by themselves: tiles, of one sample or of all of them."""

    samples: tuple[Bounds, ...]
    rows: Axis
    columns: Axis

    def groups(self) -> list[list[Window]]:
        """Return all windows, in their order, those of one size together."""
        groups: dict[tuple[int, ...], list[Window]] = {}
        for bounds in product(self.samples, self.rows.tiles, self.columns.tiles):
            size = tuple(end - start for start, end in bounds)
            groups.setdefault(size, []).append(Window(*bounds))
        return list(groups.values())

    def join(self, run: Callable[[Window], Tile]) -> Tile:
        """Run every window and join what comes out."""
        return join([self._join_tiles(run, samples) for samples in self.samples], axis=0)

    def _join_tiles(self, run: Callable[[Window], Tile], samples: Bounds) -> Tile:
        # A tile is blended with the one above and then with the one on its left, which have been
        # blended themselves before. Only then it is cropped.
        bands = []
        above: list[Tile] = []
        for top, rows in enumerate(self.rows.tiles):
            row: list[Tile] = []
            for left, columns in enumerate(self.columns.tiles):
                tile = run(Window(samples, rows, columns))
                if top > 0:
                    tile = blend(above[left], tile, self.rows.blend, _HEIGHT)
                if left > 0:
                    tile = blend(row[-1], tile, self.columns.blend, _WIDTH)
                row.append(tile)
            bands.append(join([self._crop(tile) for tile in row], _WIDTH))
            above = row
        joined = join(bands, _HEIGHT)
        height, width = self.rows.size, self.columns.size
        return joined if height is None and width is None else joined[:, :, :height, :width]

    def _crop(self, tile: Tile) -> Tile:
        height, width = self.rows.limit, self.columns.limit
        return tile if height is None and width is None else tile[:, :, :height, :width]


@partial(jax.jit, static_argnames=("extent", "axis"))
def blend(before: Tile, tile: Tile, extent: int, axis: int) -> Tile:
    """Fade from the last `extent` lines of `before` into the first of `tile`.

    Source: diffusers 0.42.1, `blend_v` and `blend_h`. The weights are float32 also under bfloat16
    (float64 for float64); each product is rounded to the dtype of the tile and the sum once more,
    as the operations of PyTorch do one by one: bit for bit under bfloat16. In float32 the compiler
    may fuse a product into the sum and so round it once less.
    """
    extent = min(before.shape[axis], tile.shape[axis], extent)
    if extent < 1:
        return tile
    wide = wide_dtype(tile.dtype)
    weights = (np.arange(extent) / extent).reshape([-1 if i == axis else 1 for i in range(5)])
    last = lax.slice_in_dim(before, before.shape[axis] - extent, None, axis=axis)
    first = lax.slice_in_dim(tile, 0, extent, axis=axis)
    faded = narrow(widen(last) * jnp.asarray(1 - weights, wide), tile.dtype)
    grown = narrow(widen(first) * jnp.asarray(weights, wide), tile.dtype)
    return lax.dynamic_update_slice_in_dim(tile, add(faded, grown), 0, axis)


def join(parts: list[Tile], axis: int) -> Tile:
    """Concatenate, if there is more than one part."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)
