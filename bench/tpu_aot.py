"""The needs of a TPU v6e: programs compiled for it on any machine, none of them run.

    make tpu-aot

Every program that encode or decode runs at some sizes is compiled, at full size and in bfloat16,
for one v6e chip. The compiler says how much memory each takes and how many operations. Compiling
takes minutes a program: each is written to `reports/bench/tpu_aot.json` as soon as it is done, and
what is there already, of the same program and compiler, is not compiled again.
"""

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from jaxvae.models.cogvideox.config import CogVideoXVAEConfig
from jaxvae.run.chunks import chunk_bounds
from parity.core.files import write_all
from parity.host.environment import commit
from tools.tables import markdown as table

TOPOLOGY = {"topology_name": "v6e:1x1", "chips_per_host_bounds": (1, 1, 1)}
KINDS = ("arguments", "output", "aliased", "temporary", "code")
PACKAGES = ("jax", "jaxlib", "libtpu", "flax")
BATCH_SIZES = {"encode": 8, "decode": 2}
"""Frames a chunk, in diffusers and here."""

Figures = dict[str, Any]
"""Of one program: `digest`, and bytes of each kind and operations, or an `error`."""


@dataclass(frozen=True)
class Program:
    """One chunk of `frames` through encoder or decoder; the first has no caches to start from.

    Frames are what goes in: latent frames of decode. Height and width are those of the video.
    """

    direction: str
    first: bool
    frames: int
    height: int
    width: int

    @property
    def name(self) -> str:
        """Name in tables and in the JSON file."""
        which = "first" if self.first else "next"
        return f"{self.direction} {which} {self.frames} of {self.height}x{self.width}"


@dataclass(frozen=True)
class Call:
    """One encode or decode of a video; `whole` puts all its frames into one chunk.

    `frames` counts what goes in, as in `Program`.
    """

    direction: str
    frames: int
    height: int
    width: int
    whole: bool = False

    def programs(self) -> list[Program]:
        """The program of each chunk, in the order in which they run."""
        size = self.frames if self.whole else BATCH_SIZES[self.direction]
        return [
            Program(self.direction, start == 0, end - start, self.height, self.width)
            for start, end in chunk_bounds(self.frames, size)
        ]

    @property
    def video_frames(self) -> int:
        """Frames of the video: 1 latent frame is 1, 2 are 8, 3 are 9, 4 are 16."""
        if self.direction == "encode":
            return self.frames
        return 4 * self.frames if self.frames % 2 == 0 else 4 * (self.frames - 1) + 1

    def array_bytes(self) -> int:
        """Bytes of the whole video and of the moments or the latent, in bfloat16."""
        latent_frames = self.frames if self.direction == "decode" else (self.frames + 3) // 4
        channels = 32 if self.direction == "encode" else 16
        pixels = self.height * self.width
        return 2 * (3 * self.video_frames * pixels + channels * latent_frames * (pixels // 64))


CALLS = (
    Call("encode", 4, 768, 1360),
    Call("decode", 2, 768, 1360),
    Call("decode", 4, 768, 1360),
    Call("decode", 13, 480, 720),
    Call("encode", 49, 480, 720),
    Call("encode", 8, 768, 1360),
    Call("encode", 16, 768, 1360),
    Call("decode", 1, 768, 1360),
    Call("decode", 13, 240, 360),
    Call("encode", 49, 240, 360),
    Call("encode", 16, 768, 1360, whole=True),
    Call("decode", 4, 768, 1360, whole=True),
    Call("decode", 13, 480, 720, whole=True),
    Call("encode", 49, 480, 720, whole=True),
)
"""In the order in which they are compiled: those that take long, or fit nowhere, last. 240x360 is
a tile of `enable_tiling()`, in whose memory a video of any size is coded."""


def wanted(calls: Sequence[Call]) -> list[Program]:
    """Every program once, in the order in which the calls need them."""
    return list(dict.fromkeys(program for call in calls for program in call.programs()))


def compile_program(program: Program, known: Figures | None, config: CogVideoXVAEConfig) -> Figures:
    """Compile for the TPU, or return `known` if it is of the very same program."""
    import jax
    import jax.numpy as jnp
    from flax import nnx
    from jax.experimental import topologies

    from jaxvae import AutoencoderKLCogVideoX
    from jaxvae.models.cogvideox.steps import decode_chunk, encode_chunk
    from jaxvae.run.steps import Coder

    (device,) = topologies.get_topology_desc(platform="tpu", **TOPOLOGY).devices
    sharding = jax.sharding.SingleDeviceSharding(device)

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    vae = nnx.eval_shape(
        lambda: AutoencoderKLCogVideoX(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    )
    vae.eval()
    if program.direction == "encode":
        step, parts = encode_chunk, (vae.encoder, vae.quant_conv)
        shrunk, channels = 1, config.in_channels
    else:
        step, parts = decode_chunk, (vae.decoder, vae.post_quant_conv)
        shrunk, channels = config.spatial_ratio, config.latent_channels
    coder = Coder(step, placed(parts))
    shape = (1, program.frames, program.height // shrunk, program.width // shrunk, channels)
    x = placed(jax.ShapeDtypeStruct(shape, jnp.bfloat16))
    cache = None if program.first else placed(jax.eval_shape(step, coder.parts, x, None)[1])
    lowered = coder.lower(x, cache)
    digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    if known is not None and known["digest"] == digest:
        return known
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        reason = next(iter(str(error).splitlines()), "no reason given")
        return {"digest": digest, "error": reason[:300]}
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return {
        "digest": digest,
        "arguments": memory.argument_size_in_bytes,
        "output": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "flops": cost["flops"],
    }


def peak(call: Call, programs: Mapping[str, Figures]) -> int | None:
    """Bytes of the chunk that needs most, with the whole video and the whole latent beside it.

    None where a program is missing or does not compile.
    """
    needed = []
    for name in {program.name for program in call.programs()}:
        figures = programs.get(name, {})
        if "temporary" not in figures:
            return None
        # what a donated cache leaves is counted as argument and as output
        held = figures["arguments"] + figures["output"] - figures["aliased"]
        needed.append(held + figures["temporary"] + figures["code"])
    return max(needed) + call.array_bytes()


def markdown(report: Mapping[str, Any], calls: Sequence[Call]) -> str:
    """The tables: calls, then the programs that they are made of."""
    programs = report["programs"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        "# Compiled for one TPU v6e chip",
        "",
        f"`make tpu-aot`, commit {report['commit']}, {versions}, topology {report['topology']}.",
        "Full-size model, parameters and arithmetic in bfloat16. Nothing ran: these are figures",
        "of the compiler. Peak is the chunk that needs most (parameters, input, caches, output,",
        "temporaries, code) and the whole video and latent beside it, in GiB of 2^30",
        "bytes.",
        "",
        table(
            ("call", "frames of video", "size", "chunks", "peak, GiB", "operations, 10^12"),
            (_of_call(call, programs) for call in calls),
        ),
        "",
        table(
            ("program", *KINDS, "operations, 10^12"),
            ((one.name, *_of_program(programs.get(one.name, {}))) for one in wanted(calls)),
        ),
    ]
    return "\n".join(lines) + "\n"


def _of_call(call: Call, programs: Mapping[str, Figures]) -> list[object]:
    parts = call.programs()
    chunks = " + ".join(str(part.frames) for part in parts)
    if len(parts) > 3:
        chunks = f"{parts[0].frames} + {len(parts) - 1} of {parts[1].frames}"
    flops = [programs.get(part.name, {}).get("flops") for part in parts]
    return [
        call.direction + (", one chunk" if call.whole else ""),
        call.video_frames,
        f"{call.height}x{call.width}",
        chunks,
        _peak_cell(call, programs),
        f"{sum(flops) / 1e12:.1f}" if None not in flops else "",
    ]


def _of_program(figures: Figures) -> list[str]:
    if "temporary" not in figures:
        return [_reason(figures), *[""] * len(KINDS)]
    return [*(f"{figures[kind] / 2**30:.2f}" for kind in KINDS), f"{figures['flops'] / 1e12:.1f}"]


def _peak_cell(call: Call, programs: Mapping[str, Figures]) -> str:
    found = peak(call, programs)
    if found is not None:
        return f"{found / 2**30:.1f}"
    reasons = (_reason(programs.get(program.name, {})) for program in call.programs())
    return next(reason for reason in reasons if reason)


def _reason(figures: Figures) -> str:
    if not figures:
        return "not compiled"
    error = str(figures.get("error", ""))
    # the compiler's own words for what it needed and had
    sizes = re.findall(r"([\d.]+)G\b", error)
    if "hbm" in error.lower() and len(sizes) >= 2:
        return f"does not fit: {float(sizes[0]):.1f} of {float(sizes[1]):.1f}"
    return error


def load(path: Path, versions: Mapping[str, str | None]) -> dict[str, Figures]:
    """Return the figures of an earlier run, or nothing if that was another compiler's."""
    if not path.exists():
        return {}
    report = json.loads(path.read_text(encoding="utf-8"))
    return dict(report["programs"]) if report["versions"] == versions else {}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("reports/bench"))
def main(out: Path) -> None:
    """Compile what is missing, one program at a time, and write tables after each."""
    try:
        importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise click.ClickException(
            "libtpu, the TPU's compiler, is not installed; `make tpu-aot` installs the extra `tpu`"
        ) from None
    # For the processes to come: no TPU is looked for, neither here nor in the network, and none of
    # its programs in a cache, since nothing can be fetched for a device that is not there.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    config = CogVideoXVAEConfig()
    programs = load(out / "tpu_aot.json", versions)
    report = {
        "versions": versions,
        "topology": TOPOLOGY["topology_name"],
        "commit": commit(),
        "programs": programs,
    }
    # What nobody has compiled comes first, then what was compiled of an earlier commit.
    for program in sorted(wanted(CALLS), key=lambda program: program.name in programs):
        known = programs.get(program.name)
        # A process for each: one that the system stops for its memory takes no other with it.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                figures = pool.submit(compile_program, program, known, config).result()
            except BrokenProcessPool:
                figures = {"digest": "", "error": "the compiler was stopped, or ran out of memory"}
        programs[program.name] = figures
        tables = markdown(report, CALLS)
        write_all(out, {"tpu_aot.json": json.dumps(report, indent=1), "tpu_aot.md": tables})
        click.echo(f"{program.name}: {_reason(figures) or 'compiled'}")


if __name__ == "__main__":
    main()
