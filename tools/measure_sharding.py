"""Costs to a device of each way of splitting, as compiled and by formula, and how far it scales.

    python -m tools.measure_sharding

Compiles the steps of a small model for 1, 2, 4 and 8 virtual devices and reads from the programs
what a device computes, keeps and gets from others. `tools/scaling.py` has the same from the
configuration; with it the full model is extrapolated to 256 chips. That is arithmetic, not a
measurement. The chip is a TPU v6e: 918 TFLOP/s in bfloat16, 100 GB/s in one direction of one of
its four links (800 GB/s in both directions of all), as published; a message takes 1 microsecond,
which is assumed. Writes reports/bench/sharding.json and reports/bench/sharding.md.
"""

import json
import os
import re
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click

from jaxvae.models.cogvideox.config import DOWN_BLOCK, UP_BLOCK, CogVideoXVAEConfig
from parity.core.files import write_all
from parity.host.environment import commit
from tools.scaling import Chip, Split, call_seconds, step_cost
from tools.tables import markdown as table

OUT = Path(__file__).parents[1] / "reports" / "bench"
DEVICES = (1, 2, 4, 8)
CHIPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# So small that every level is computed by the 3-D convolution of accelerators on a CPU too.
SMALL = CogVideoXVAEConfig(
    block_out_channels=(16, 32),
    down_block_types=(DOWN_BLOCK,) * 2,
    up_block_types=(UP_BLOCK,) * 2,
    norm_num_groups=2,
    layers_per_block=1,
    latent_channels=4,
    temporal_compression_ratio=2,
)
STEP_HEAD = (
    "step", "split", "devices", "operations", "formula", "memory", "lines", "formula", "sums",
    "formula", "gathered",
)  # fmt: skip
CALL_HEAD = (
    "call", "input", "chips", "height", "width", "time", "speedup", "efficiency", "operations",
    "bytes",
)  # fmt: skip
CHUNKS = {"encode": (4, 4, 16), "decode": (2, 2, 8)}  # frames, height, width; both end at 4 x 16

_COLLECTIVE = re.compile(
    r" = (\(?[^()]*\)?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\("
)
_SHAPE = re.compile(r"\b(pred|[a-z]+(\d+))\[([\d,]*)\]")


def communicated(program: str) -> dict[str, int]:
    """Return the bytes that a device gets by each kind of collective of a compiled program."""
    found: dict[str, int] = {}
    for shapes, kind in _COLLECTIVE.findall(program):
        for _, bits, sizes in _SHAPE.findall(shapes):
            count = 1
            for size in filter(None, sizes.split(",")):
                count *= int(size)
            found[kind] = found.get(kind, 0) + count * int(bits or 8) // 8
    return found


@dataclass(frozen=True)
class Row:
    """One program: a step that is not the first, for one device."""

    direction: str
    split: str
    devices: int
    flops: float
    flops_formula: float
    memory: int
    permuted: int
    permuted_formula: float
    reduced: int
    reduced_formula: float
    gathered: int


def measure(direction: str, axis: str, devices: int) -> Row:
    """Compile the step of `direction` over `devices` and read what it costs each."""
    import jax
    import numpy as np
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from jaxvae import AutoencoderKLCogVideoX
    from jaxvae.devices.sharding import Layout, ShardedCoder, ShardedStep
    from jaxvae.models.cogvideox.steps import decode_chunk, encode_chunk

    vae = nnx.eval_shape(lambda: AutoencoderKLCogVideoX(SMALL, rngs=nnx.Rngs(0)))
    vae.eval()
    mesh = jax.make_mesh(
        (devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    layout = Layout(mesh, **{axis: "x"})
    everywhere = NamedSharding(mesh, PartitionSpec())
    step, module, channels = {
        "encode": (encode_chunk, vae.encoder, SMALL.in_channels),
        "decode": (decode_chunk, vae.decoder, SMALL.latent_channels),
    }[direction]
    parts = jax.tree.map(lambda array: array.update(sharding=everywhere), (module, None))
    frames, height, width = CHUNKS[direction]
    batch = devices if axis == "batch" else 1
    x = jax.ShapeDtypeStruct((batch, frames, height, width, channels), np.float32)
    sharded = ShardedStep(step, layout)
    _, cache = jax.eval_shape(sharded, parts, x, None)
    coder = ShardedCoder(sharded, parts, layout=layout, size=frames)
    program = coder.lower(x, cache).compile()
    found = communicated(program.as_text())
    split = Split(**{axis: devices}) if axis != "batch" else Split()
    formula = step_cost(SMALL, direction, CHUNKS[direction], split, 4)
    return Row(
        direction,
        axis,
        devices,
        program.cost_analysis()["flops"],
        formula.flops,
        program.memory_analysis().temp_size_in_bytes,
        found.get("collective-permute", 0),
        formula.halo + formula.past,
        found.get("all-reduce", 0),
        formula.sums,
        sum(found.get(kind, 0) for kind in ("all-gather", "all-to-all", "reduce-scatter")),
    )


def extrapolate(
    direction: str, size: tuple[int, int, int], chunk: int, chip: Chip
) -> list[dict[str, Any]]:
    """Return the fastest split of one video of `size` for each number of chips.

    `size` is that of the input of `direction`. A split must divide the latent's height and width.
    """
    config = CogVideoXVAEConfig()
    ratio = config.spatial_ratio if direction == "encode" else 1
    height, width = size[1] // ratio, size[2] // ratio
    rows: list[dict[str, Any]] = []
    alone, _ = call_seconds(config, direction, size, chunk, Split(), 2, chip)
    for chips in CHIPS:
        splits = [
            Split(h, w, t)
            for h, w, t in product(CHIPS, CHIPS, CHIPS)
            if h * w * t == chips and height % h == 0 and width % w == 0
        ]
        costs = [(*call_seconds(config, direction, size, chunk, s, 2, chip), s) for s in splits]
        best, cost, split = min(costs, key=lambda row: row[0])
        rows.append(
            {
                "direction": direction,
                "size": list(size),
                "chips": chips,
                "split": split._asdict(),
                "seconds": best,
                "speedup": alone / best,
                "flops": cost.flops,
                "bytes": cost.bytes,
                "messages": cost.messages,
            }
        )
    return rows


def markdown(rows: list[Row], far: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """Return both tables with what they were made from."""
    lines = [
        "# Many devices",
        "",
        f"`python -m tools.measure_sharding`: jax {about['jax']}, {about['platform']}, float32,"
        f" commit {about['commit']}.",
        "",
        "## A step of the small model, as compiled and by formula",
        "",
        "Of each device: operations, temporary bytes, bytes of border lines and frames that it",
        "gets, and bytes of sums. `batch` and `time` have as many samples or chunks as devices;",
        "one device along time sends to itself. The formula of lines leaves out that the padding",
        "before a convolution of stride 2 moves more lines the more devices there are.",
        "",
        table(STEP_HEAD, map(_of_step, rows)),
        "",
        "## One video on many chips, by formula",
        "",
        "The full model in bfloat16 and the fastest split for each number of chips, with",
        f"{about['tflops']:g} TFLOP/s, {about['link_gbs']:g} GB/s a link and"
        f" {about['latency_us']:g} microseconds a message. Nothing overlaps, every",
        "product runs at the peak and memory is not counted, so that what is sent weighs as much",
        "as it can. This is no measurement. A batch is split over as many chips as it has samples,",
        "and nothing is sent.",
        "",
        table(CALL_HEAD, map(_of_call, far)),
    ]
    return "\n".join(lines) + "\n"


def _of_step(r: Row) -> tuple[object, ...]:
    flops = f"{r.flops:.3g}", f"{r.flops_formula:.3g}"
    lines = r.permuted, f"{r.permuted_formula:.0f}"
    sums = r.reduced, f"{r.reduced_formula:.0f}"
    return r.direction, r.split, r.devices, *flops, r.memory, *lines, *sums, r.gathered


def _of_call(r: dict[str, Any]) -> tuple[object, ...]:
    speed = f"{r['speedup']:.1f}", f"{100 * r['speedup'] / r['chips']:.0f} %"
    size, split = "x".join(map(str, r["size"])), r["split"].values()
    costs = f"{r['flops']:.3g}", f"{r['bytes']:.3g}"
    return r["direction"], size, r["chips"], *split, *speed, *costs


ABOVE_0 = click.FloatRange(0, min_open=True)


@click.command()
@click.option("--tflops", type=ABOVE_0, default=918.0, help="Of a chip, in 10^12 a second.")
@click.option("--link-gbs", type=ABOVE_0, default=100.0, help="Of a link, one direction.")
@click.option("--latency-us", type=click.FloatRange(0), default=1.0, help="Of a message.")
def main(tflops: float, link_gbs: float, latency_us: float) -> None:
    """Print what splitting costs, and write reports/bench/sharding.md and .json."""
    flags = os.environ.get("XLA_FLAGS", "")
    # read when JAX starts, which is in `measure`
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES[-1]}"
    rows = [
        measure(direction, axis, devices)
        for direction in CHUNKS
        for axis in ("batch", "width", "time")
        for devices in DEVICES
    ]
    chip = Chip(tflops * 1e12, link_gbs * 1e9, latency_us * 1e-6)
    far = [
        row
        for height, width in ((480, 720), (768, 1360))
        for direction, size, chunk in (
            ("encode", (49, height, width), 8),
            ("decode", (13, height // 8, width // 8), 2),
        )
        for row in extrapolate(direction, size, chunk, chip)
    ]
    import jax

    about = {
        "commit": commit(),
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "tflops": tflops,
        "link_gbs": link_gbs,
        "latency_us": latency_us,
    }
    content = {**about, "compiled": [asdict(row) for row in rows], "extrapolated": far}
    text = markdown(rows, far, about)
    write_all(OUT, {"sharding.json": json.dumps(content, indent=1) + "\n", "sharding.md": text})
    click.echo(text)


if __name__ == "__main__":
    main()
