"""How the Wan autoencoder cuts frames into tiles.

Source: diffusers 0.42.1, `AutoencoderKLWan`.
"""

from collections.abc import Mapping

from jaxvae.models import switches
from jaxvae.models.switches import Direction, Sides
from jaxvae.run.tiling import Axis, plan_stride


class Switches(switches.Switches):
    """The switches of this autoencoder, under diffusers' names."""

    def reset_tiles(self) -> None:
        """Set the sizes of tiles to those that the model starts with."""
        self.tile_sample_min_height = self.tile_sample_min_width = 256
        self.tile_sample_stride_height = self.tile_sample_stride_width = 192

    def enable_tiling(
        self,
        tile_sample_min_height: int | None = None,
        tile_sample_min_width: int | None = None,
        tile_sample_stride_height: int | None = None,
        tile_sample_stride_width: int | None = None,
    ) -> None:
        """From now on cut videos that are higher or wider than a tile into overlapping tiles.

        Sizes are in pixels; a tile begins a stride after the one before. Tiles are another
        function, not only another memory use: each pads with zeros of its own. A tile and a stride
        ought to be multiples of the model's spatial ratio.

        Quirks of the source, kept: whatever is None or 0 stays as it is, also as an earlier call
        has set it. With patches the tiles of encode are as many patches, not pixels.
        """
        self.use_tiling = True
        self.tile_sample_min_height = tile_sample_min_height or self.tile_sample_min_height
        self.tile_sample_min_width = tile_sample_min_width or self.tile_sample_min_width
        self.tile_sample_stride_height = tile_sample_stride_height or self.tile_sample_stride_height
        self.tile_sample_stride_width = tile_sample_stride_width or self.tile_sample_stride_width

    def tile_plan(self) -> tuple[tuple[int, int], Sides]:
        """Return the sizes of a tile in pixels, and the parts of it that the next one overlaps."""
        height, width = self.tile_sample_min_height, self.tile_sample_min_width
        rows, columns = self.tile_sample_stride_height, self.tile_sample_stride_width
        return (height, width), (1 - rows / height, 1 - columns / width)

    def set_tiles(self, sizes: tuple[int, int], overlaps: Sides) -> None:
        """Switch tiling on, with what `tile_plan` returns then."""
        strides = (round(size * (1 - part)) for size, part in zip(sizes, overlaps, strict=True))
        self.enable_tiling(*sizes, *strides)

    def plan_tiles(self, direction: Direction, size: tuple[int, int]) -> tuple[Axis, Axis] | None:
        """Return the tiles along height and width of patches or latents, None if it is one.

        Raises ValueError where the source fails too.
        """
        patch, ratio = self.config.patch, self.config.scale_factor_spatial
        if ratio is None or ratio % patch:
            raise ValueError(
                "tiling: expected a scale_factor_spatial in the config that is a multiple of"
                f" patch_size ({patch}), found {ratio}"
            )
        encodes = direction == "encode"
        tiles = (self.tile_sample_min_height, self.tile_sample_min_width)
        strides = (self.tile_sample_stride_height, self.tile_sample_stride_width)
        most = (tile // (patch if encodes else ratio) for tile in tiles)
        if all(lines <= limit for lines, limit in zip(size, most, strict=True)):
            return None
        # by what the pixels of a tile are divided; the source takes patches for pixels
        into, out_of = (1, ratio // patch) if encodes else (ratio, patch)
        height, width = (
            plan_stride(
                axis,
                lines,
                (tile // into, stride // into),
                (tile // out_of, stride // out_of),
                lines // out_of if encodes else lines * ratio // patch,
                1 << self.config.halvings if encodes else 1,
            )
            for axis, lines, tile, stride in zip(
                ("height", "width"), size, tiles, strides, strict=True
            )
        )
        return height, width

    def levels(self, direction: Direction, size: tuple[int, int]) -> Mapping[str, tuple[int, int]]:
        """Return height and width by the name of what has them: all that sharding must divide."""
        if direction == "decode":
            return super().levels(direction, size)
        names = ["the video in patches", *(f"level {i + 1}" for i in range(self.config.halvings))]
        return {name: (size[0] >> i, size[1] >> i) for i, name in enumerate(names)}
