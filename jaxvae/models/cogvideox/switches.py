"""How the CogVideoX autoencoder cuts frames into tiles.

Source: diffusers 0.42.1, `AutoencoderKLCogVideoX`.
"""

from jaxvae.models import switches
from jaxvae.models.switches import Direction, Sides
from jaxvae.run.tiling import Axis, plan_tiles


class Switches(switches.Switches):
    """The switches of this autoencoder, under diffusers' names."""

    def reset_tiles(self) -> None:
        """Set the sizes of tiles to those that the model starts with."""
        config = self.config
        self.tile_sample_min_height = config.sample_height // 2
        self.tile_sample_min_width = config.sample_width // 2
        self.tile_latent_min_height = int(self.tile_sample_min_height / config.spatial_ratio)
        self.tile_latent_min_width = int(self.tile_sample_min_width / config.spatial_ratio)
        self.tile_overlap_factor_height = 1 / 6
        self.tile_overlap_factor_width = 1 / 5

    def enable_tiling(
        self,
        tile_sample_min_height: int | None = None,
        tile_sample_min_width: int | None = None,
        tile_overlap_factor_height: float | None = None,
        tile_overlap_factor_width: float | None = None,
    ) -> None:
        """From now on cut videos that are higher or wider than a tile into overlapping tiles.

        Sizes are in pixels, overlaps are parts of a tile. At first a tile is half of the config's
        `sample_height` and `sample_width`, and overlaps are 1/6 and 1/5. Tiles are another
        function, not only another memory use: each has group statistics and caches of its own. A
        tile ought to be a multiple of the model's spatial ratio (8), and both overlaps whole in
        pixels and in latents; see `tiling.plan_axis` for what comes out otherwise.

        Quirk of the source, kept: whatever is None or 0 stays as it is, also as an earlier call
        has set it.
        """
        self.use_tiling = True
        self.tile_sample_min_height = tile_sample_min_height or self.tile_sample_min_height
        self.tile_sample_min_width = tile_sample_min_width or self.tile_sample_min_width
        self.tile_latent_min_height = int(self.tile_sample_min_height / self.config.spatial_ratio)
        self.tile_latent_min_width = int(self.tile_sample_min_width / self.config.spatial_ratio)
        self.tile_overlap_factor_height = (
            tile_overlap_factor_height or self.tile_overlap_factor_height
        )
        self.tile_overlap_factor_width = tile_overlap_factor_width or self.tile_overlap_factor_width

    def tile_plan(self) -> tuple[tuple[int, int], Sides]:
        """Return the sizes of a tile in pixels, and the parts of it that the next one overlaps."""
        sizes = (self.tile_sample_min_height, self.tile_sample_min_width)
        return sizes, (self.tile_overlap_factor_height, self.tile_overlap_factor_width)

    def set_tiles(self, sizes: tuple[int, int], overlaps: Sides) -> None:
        """Switch tiling on, with what `tile_plan` returns then."""
        self.enable_tiling(*sizes, *overlaps)

    def plan_tiles(self, direction: Direction, size: tuple[int, int]) -> tuple[Axis, Axis] | None:
        """Return the tiles along height and width of an input of this size, None if it is one."""
        tile, factors = self.tile_plan()
        output = (self.tile_latent_min_height, self.tile_latent_min_width)
        if direction == "encode":
            return plan_tiles(size, tile, output, factors, self.config.spatial_ratio)
        return plan_tiles(size, output, tile, factors)
