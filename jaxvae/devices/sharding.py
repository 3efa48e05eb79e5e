"""Many devices: which axis of a video lies along which axis of a mesh, and the steps for it.

Not in diffusers. Batch, height and width are left to the compiler: it splits the program of one
device, and has neighbours exchange the lines that a convolution needs and the sums of group
statistics. Time is split by chunks. Those after the first are alike, so that a round of them, one
on each device, runs side by side (`halo.py`); the first runs alone, on every device. The values are
those of one device, up to the rounding of sums that are taken in another order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxvae.layers.convolution import Cache
from jaxvae.layers.halo import Halo
from jaxvae.run.chunks import Bounds
from jaxvae.run.steps import Coder, Output, Parts, Step, Video
from jaxvae.run.tiling import Windows

Axis = Literal["batch", "height", "width", "time", "tiles"]


@dataclass(frozen=True)
class Layout:
    """A mesh, and the names of its axes along which an axis of a video is split, if it is.

    Raises ValueError if no axis is split, for a name that the mesh lacks or that is used twice, and
    for a mesh whose axes are not all left to the compiler.
    """

    mesh: Mesh
    batch: str | None = None
    height: str | None = None
    width: str | None = None
    time: str | None = None
    tiles: str | None = None

    def __post_init__(self) -> None:
        """Check the names against the mesh."""
        if not isinstance(self.mesh, Mesh | AbstractMesh):
            raise ValueError(
                f"enable_sharding: expected a jax.sharding.Mesh, found a {type(self.mesh).__name__}"
            )
        given = {axis: name for axis, name in self._names().items() if name is not None}
        found = ", ".join(f"{axis}={name!r}" for axis, name in given.items()) or "none"
        names, known = list(given.values()), self.mesh.axis_names
        if (
            not names
            or len(set(map(str, names))) < len(names)
            or any(n not in known for n in names)
        ):
            raise ValueError(
                "enable_sharding: expected batch, height, width, time or tiles, each with another"
                f" of the mesh's axes {known}, found {found}"
            )
        if self.tiles is not None and set(given) - {"tiles", "time"}:
            raise ValueError(
                "enable_sharding: expected tiles alone or with time, since tiles are stacked along"
                f" the batch and are not split themselves, found {found}"
            )
        if any(kind != AxisType.Auto for kind in self.mesh.axis_types):
            raise ValueError(
                "enable_sharding: expected a mesh whose axes are AxisType.Auto, found"
                f" {self.mesh.axis_types}; make it with"
                f" axis_types=(jax.sharding.AxisType.Auto,) * {len(known)}"
            )

    def _names(self) -> dict[Axis, str | None]:
        return {axis: getattr(self, axis) for axis in get_args(Axis)}

    def devices(self, axis: Axis) -> int:
        """Return along how many devices `axis` is split."""
        name = self._names()[axis]
        return 1 if name is None else int(self.mesh.shape[name])

    def place(self, *, time: bool = False, tiles: bool = True) -> NamedSharding:
        """Return the place of (b, t, h, w, c); a stack of `tiles` is a batch.

        With `time` each device along it holds a chunk of the frames, or its caches; else all.
        """
        batch = self.batch or (self.tiles if tiles else None)
        frames = self.time if time else None
        return NamedSharding(self.mesh, PartitionSpec(batch, frames, self.height, self.width, None))

    def replicate(self, module: nnx.Module) -> None:
        """Put a copy of all that `module` holds on every device of the mesh."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        nnx.update(module, jax.device_put(nnx.state(module), everywhere))

    def rounds(self, bounds: list[Bounds]) -> list[Bounds]:
        """Join the chunks after the first, as many as run side by side; the last may have fewer."""
        first, *rest = bounds
        count = self.devices("time")
        joined = (rest[i : i + count] for i in range(0, len(rest), count))
        return [first, *((chunks[0][0], chunks[-1][1]) for chunks in joined)]

    def check(self, batch: int, levels: Mapping[str, tuple[int, int]], windows: Windows) -> None:
        """Refuse what does not split evenly: the batch, or height and width of any level.

        Raises ValueError, also for slices of a batch that is split, for tiles of images that are
        split, and for two rows or columns over two devices of a mesh that has more.
        """
        if self.batch is not None and len(windows.samples) > 1:
            raise ValueError(
                "sharding: expected samples that run together, found slices of a batch that is"
                " split over devices; call disable_slicing() or shard something else"
            )
        tiles = len(windows.rows.tiles) * len(windows.columns.tiles)
        if self.tiles is not None and tiles == 1:
            raise ValueError(
                "sharding: tiles are split over devices, and this is one tile; call"
                " enable_tiling() with smaller tiles, or shard something else"
            )
        if (self.height is not None or self.width is not None) and tiles > 1:
            raise ValueError(
                f"sharding: expected whole images, found {tiles} tiles of images that are split"
                " over devices; call disable_tiling() or shard batch or time"
            )
        self._check("batch", batch, "the input")
        for level, (height, width) in levels.items():
            self._check("height", height, level)
            self._check("width", width, level)

    def _check(self, axis: Axis, size: int, level: str) -> None:
        devices = self.devices(axis)
        if size % devices:
            raise ValueError(
                f"sharding: {axis} is split over {devices} devices"
                f" ({self._names()[axis]!r}), which does not divide the {size} of {level}; give"
                " another size, or fewer devices"
            )
        others = self.mesh.size // (self.devices("height") * self.devices("width"))
        if axis != "batch" and size == devices == 2 and others > 1:
            # Two devices with a row each: XLA of jax 0.10.2 adds up what all of the mesh convolve,
            # not what these two do.
            raise ValueError(
                f"sharding: {axis} is split over 2 devices ({self._names()[axis]!r}), each with 1"
                f" of the 2 of {level}, in a mesh of {self.mesh.size}: XLA convolves that wrongly;"
                " give a larger size, or split something else"
            )


def withdraw(module: nnx.Module) -> None:
    """Undo `Layout.replicate`: keep one copy of everything, on JAX's default device."""

    def alone(copies: Any) -> Any:
        # By way of the host: what one process has bound to a device cannot go to several.
        if jnp.issubdtype(copies.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(copies))
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(copies))
        return jnp.asarray(np.asarray(copies))

    nnx.update(module, jax.tree.map(alone, nnx.state(module)))


@dataclass(frozen=True)
class ShardedStep:
    """A step over a mesh: a first chunk, or a round of chunks, one for each device along time."""

    step: Step
    layout: Layout

    def __call__(self, parts: Parts, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
        """Return what the chunks give, and the caches: some for each device along time.

        Only those of the first device count. The others hold what they have at hand, so that
        nothing need be sent.
        """
        layout = self.layout
        time = layout.time
        if time is None or cache is None:
            x = lax.with_sharding_constraint(x, layout.place())
            output, cache = self.step(parts, x, cache)
            output = lax.with_sharding_constraint(output, layout.place())
            # Each device along time has run the chunk and keeps its own.
            copies = (1, layout.devices("time"), 1, 1, 1)
            cache = jax.tree.map(lambda past: jnp.tile(past, copies), cache)
        else:

            def run(parts: Parts, x: Video, cache: Cache) -> tuple[Output, Cache]:
                return self.step(parts, x, jax.tree.map(lambda past: Halo(past, time), cache))

            frames = PartitionSpec(None, time)
            x = lax.with_sharding_constraint(x, layout.place(time=True))
            # Only time is split by hand. What else is split stays the compiler's.
            output, cache = jax.shard_map(
                run,
                mesh=layout.mesh,
                in_specs=(PartitionSpec(), frames, frames),
                out_specs=(frames, frames),
                axis_names={time},
            )(parts, x, cache)
            output = lax.with_sharding_constraint(output, layout.place(time=True))
        return output, lax.with_sharding_constraint(cache, layout.place(time=True))


@dataclass(frozen=True, kw_only=True)
class ShardedCoder(Coder):
    """A step over a mesh and the modules it runs; `size` frames are a chunk after the first."""

    layout: Layout
    size: int

    def __call__(self, x: Video, cache: Cache | None) -> tuple[Output, Cache]:
        """Return what the chunks give, and the caches for the next."""
        given = x.shape[1]
        if cache is not None:
            x = self.fill(x)
        output, cache = super().__call__(jax.device_put(x, self._place(cache)), cache)
        if given < x.shape[1]:
            output = jax.device_put(output, self.layout.place())
            output = output[:, : output.shape[1] * given // x.shape[1]]
        return output, cache

    def lower(self, x: jax.ShapeDtypeStruct, cache: Cache | None) -> jax.stages.Lowered:
        """Return the program for a chunk or round and caches of these shapes, not compiled yet."""
        if cache is not None:
            x = jax.eval_shape(self.fill, x)
        place = self.layout.place(time=True)
        cache = jax.tree.map(lambda past: past.update(sharding=place), cache)
        return super().lower(x.update(sharding=self._place(cache)), cache)

    def _place(self, cache: Cache | None) -> NamedSharding:
        return self.layout.place(time=cache is not None)

    def fill(self, x: Video) -> Video:
        """Repeat the last frame until every device along time has a chunk."""
        missing = -x.shape[1] % (self.size * self.layout.devices("time"))
        return jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)), mode="edge")

    def join(self, outputs: list[Output]) -> Output:
        """Join along time; each device along time holds all frames."""
        joined: Output = _join(outputs, self.layout.place(tiles=False))
        return joined


@partial(jax.jit, static_argnames="sharding")
def _join(outputs: list[Output], sharding: NamedSharding) -> Output:
    placed = [lax.with_sharding_constraint(output, sharding) for output in outputs]
    joined: Output = lax.with_sharding_constraint(jnp.concatenate(placed, axis=1), sharding)
    return joined


def shard(coder: Coder, layout: Layout, size: int) -> ShardedCoder:
    """Return `coder` over a mesh; `size` frames are a chunk after the first.

    Raises ValueError for a coder that is not compiled: only the compiler splits a step.
    """
    if not coder.compiled:
        raise ValueError(
            "sharding: expected compiled=True, found False; call disable_sharding() to run layer"
            " by layer"
        )
    step = ShardedStep(coder.step, layout)
    return ShardedCoder(step, coder.parts, draws=coder.draws, layout=layout, size=size)
