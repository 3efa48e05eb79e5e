"""The memory of a TPU v6e that each program needs, asked of its compiler on any machine.

    make tpu-aot

Every program that encode or decode runs at some sizes is planned, at full size and in bfloat16, for
one v6e chip; none of them runs. What a program needs the compiler says only of one that does not
fit, and then within seconds: so each is given an array as large as the chip's memory beside its
own. `memory_analysis` of a program that is compiled, which takes minutes, counts more than it
needs.
"""

import importlib.metadata
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.options import OUT
from bench.sides import MODELS, Spec, config_of, family, input_shape
from parity.core.files import write_all
from parity.host.environment import commit
from tools.tables import markdown as table

TOPOLOGY = "v6e:1x1"
PACKAGES = ("jax", "jaxlib", "libtpu", "flax")
BALLAST = 32
"""GiB of an array that each program is given beside its own: more than a chip has."""

NEEDED = re.compile(
    r"required for HLO temporaries \(([\d.]+)G\) exceeds available HBM \(([\d.]+)G\)"
)

Figures = dict[str, Any]
"""Of one program, bytes: `needs` in all, what it is `given` and what it `returns`; operations."""


@dataclass(frozen=True)
class Call:
    """One encode or decode of a video or image; `whole` puts all its frames into one chunk."""

    model: str
    direction: str
    frames: int
    height: int
    width: int
    whole: bool = False

    @property
    def spec(self) -> Spec:
        """The same as the benchmarks' sides have it."""
        size = (self.frames, self.height, self.width)
        config = MODELS[self.model]
        return Spec("JAX", "tpu", config, self.direction, "bfloat16", *size, model=self.model)


CALLS = (
    Call("cogvideox", "encode", 4, 768, 1360),
    Call("cogvideox", "encode", 8, 768, 1360),
    Call("cogvideox", "encode", 16, 768, 1360),
    Call("cogvideox", "decode", 1, 768, 1360),
    Call("cogvideox", "decode", 8, 768, 1360),
    Call("cogvideox", "decode", 16, 768, 1360),
    Call("cogvideox", "encode", 49, 480, 720),
    Call("cogvideox", "decode", 49, 480, 720),
    Call("cogvideox", "encode", 49, 240, 360),
    Call("cogvideox", "decode", 49, 240, 360),
    Call("cogvideox", "encode", 16, 768, 1360, whole=True),
    Call("cogvideox", "decode", 16, 768, 1360, whole=True),
    Call("cogvideox", "encode", 49, 480, 720, whole=True),
    Call("cogvideox", "decode", 49, 480, 720, whole=True),
    Call("wan", "encode", 49, 480, 832),
    Call("wan", "decode", 49, 480, 832),
    Call("wan", "encode", 81, 480, 832),
    Call("wan", "decode", 81, 480, 832),
    Call("kl", "encode", 1, 1024, 1024),
    Call("kl", "decode", 1, 1024, 1024),
)
"""240x360 is a tile of CogVideoX's `enable_tiling()`, in whose memory any size is coded."""


def programs(call: Call, vae: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Return a call's programs by name: coder, chunk and caches, as shapes."""
    config = vae.config
    if call.model == "cogvideox":  # the chunks of the others cannot be set
        sizes = (call.frames, config.latent_frames(call.frames)) if call.whole else (8, 2)
        vae.num_sample_frames_batch_size, vae.num_latent_frames_batch_size = sizes
    kind = "video" if call.direction == "encode" else "latent"
    found = {}
    for coder, x, cache in vae.step_programs(**{kind: input_shape(call.spec, config)}):
        which = "first" if cache is None else "next"
        name = f"{call.model} {call.direction} {which} {x.shape[1]} of {call.height}x{call.width}"
        found[name] = coder, x, cache
    return found


def plan(coder: Any, x: Any, cache: Any) -> Figures:
    """Return what one program needs. Raises JaxRuntimeError for what the compiler cannot plan."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies

    (device,) = topologies.get_topology_desc(
        platform="tpu", topology_name=TOPOLOGY, chips_per_host_bounds=(1, 1, 1)
    ).devices
    sharding = jax.sharding.SingleDeviceSharding(device)

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    def beside(parts: Any, x: Any, cache: Any, ballast: Any) -> Any:
        return coder.step(parts, x, cache), ballast[0, 0]

    given = placed((coder.parts, x, cache))
    ballast = placed(jax.ShapeDtypeStruct((BALLAST, 2**18, 1024), jnp.float32))
    try:
        jax.jit(beside, donate_argnums=2).lower(*given, ballast).compile()
    except jax.errors.JaxRuntimeError as error:
        found = NEEDED.search(str(error))
        if found is None:
            raise
    else:
        raise AssertionError(f"{BALLAST} GiB more than the program has fit the chip")
    total, memory = map(float, found.groups())
    return {
        "needs": round((total - BALLAST) * 2**30),
        "memory": round(memory * 2**30),
        "given": size(given),
        "returns": size(jax.eval_shape(coder.step, *given)),
        "operations": operations(jax.make_jaxpr(coder.step)(*given).jaxpr),
    }


def size(tree: Any) -> int:
    """Return the bytes of all arrays."""
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def operations(jaxpr: Any) -> int:
    """Return the operations of convolutions and products, as another platform is given them."""
    from jax.extend.core import ClosedJaxpr

    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = params["dimension_numbers"].rhs_spec[0]
            total += 2 * equation.outvars[0].aval.size * math.prod(kernel) // kernel[outputs]
        elif name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
        elif name == "cond":  # of `platform_dependent`: the last is the default
            total += operations(params["branches"][-1].jaxpr)
        else:
            inner = (value for value in params.values() if isinstance(value, ClosedJaxpr))
            total += sum(operations(one.jaxpr) for one in inner) * params.get("length", 1)
    return total


def array_bytes(call: Call, config: Any) -> int:
    """Return the bytes of the whole video and of the moments or the latent, in bfloat16."""
    pixels = call.height * call.width
    latent = config.latent_frames(call.frames) * pixels // config.spatial_ratio**2
    channels = config.latent_channels * (2 if call.direction == "encode" else 1)
    total: int = 2 * (3 * call.frames * pixels + channels * latent)
    return total


def needs(row: Figures, found: Mapping[str, Figures]) -> int:
    """Return the bytes of the chunk that needs most, with the whole video and latent beside it."""
    most: int = max(found[name]["needs"] for name in row["programs"])
    return most + int(row["arrays"])


def markdown(report: Mapping[str, Any]) -> str:
    """The tables: calls, then the programs that they are made of."""
    found = report["found"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    memory = max(figures["memory"] for figures in found.values())
    lines = [
        "# Planned for one TPU v6e chip",
        "",
        f"`{report['command']}`, commit {report['commit']}, {versions}, topology"
        f" {report['topology']}.",
        "Full-size models, parameters and arithmetic in bfloat16. Nothing ran: these are figures",
        "of the compiler. A call needs what its neediest program needs (parameters, chunk, caches,",
        "output, temporaries) and the whole video and latent beside it, in GiB of 2^30 bytes; the",
        f"chip has {memory / 2**30:.2f}. Operations are those of convolutions and products as they",
        "are written, of all chunks, in 10^12.",
        "",
        table(
            ("call", "frames", "size", "chunks", "needs, GiB", "fits", "operations"),
            (_of_call(row, found) for row in report["calls"]),
        ),
        "",
        table(
            ("program", "needs, GiB", "of which given", "returned", "operations"),
            ((name, *_of_program(figures)) for name, figures in found.items()),
        ),
    ]
    return "\n".join(lines) + "\n"


def _of_call(row: Figures, found: Mapping[str, Figures]) -> Sequence[object]:
    total, names = needs(row, found), row["programs"]
    memory = found[names[0]]["memory"]
    done = sum(found[name]["operations"] for name in names)
    return (
        f"{row['model']} {row['direction']}{', one chunk' if row['whole'] else ''}",
        row["frames"],
        f"{row['height']}x{row['width']}",
        len(names),
        f"{total / 2**30:.1f}",
        "yes" if total <= memory else "no",
        f"{done / 1e12:.1f}",
    )


def _of_program(figures: Figures) -> Sequence[str]:
    sizes = (figures[kind] / 2**30 for kind in ("needs", "given", "returns"))
    return (*(f"{one:.2f}" for one in sizes), f"{figures['operations'] / 1e12:.1f}")


@click.command()
@OUT
def main(out: Path) -> None:
    """Plan every program, one at a time, and write the tables after each call."""
    try:
        importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise click.ClickException(
            "libtpu, the TPU's compiler, is not installed; `make tpu-aot` installs the extra `tpu`"
        ) from None
    # No TPU is looked for, neither here nor in the network, and none of its programs in a cache,
    # since nothing can be fetched for a device that is not there.
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax.numpy as jnp
    from flax import nnx

    report: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "bench.tpu_aot", *sys.argv[1:]]),
        "commit": commit(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "topology": TOPOLOGY,
        "calls": [],
        "found": {},
    }
    models: dict[str, Any] = {}
    for call in CALLS:
        config = config_of(call.spec)
        if call.model not in models:
            model = family(call.model).model
            models[call.model] = model(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
            models[call.model].eval()
        wanted = programs(call, models[call.model])
        for name, program in wanted.items():
            if name not in report["found"]:
                report["found"][name] = plan(*program)
                click.echo(f"{name}: {report['found'][name]['needs'] / 2**30:.2f} GiB", err=True)
        row = {**vars(call), "arrays": array_bytes(call, config)}
        chunks = models[call.model].bounds(
            call.direction,
            call.frames if call.direction == "encode" else config.latent_frames(call.frames),
        )
        names = list(wanted)
        row["programs"] = names[:1] + names[-1:] * (len(chunks) - 1)
        report["calls"].append(row)
        texts = {".json": json.dumps(report, indent=1), ".md": markdown(report)}
        write_all(out, {f"tpu_aot{end}": text for end, text in texts.items()})


if __name__ == "__main__":
    main()
