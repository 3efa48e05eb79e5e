"""The port against PyTorch on this machine's CPU: how long, and how near.

    make bench
    make bench ARGS='--model kl --rounds 9'

Each size is a row, each side a process of its own: PyTorch as it comes, with channels last and
compiled, and the port. They take turns, run by run, and ratios are taken within a turn, so that a
machine that slows down slows both. Every row is written when it is done, to a table in
`reports/bench` that has the name of the machine's processor.
"""

import os
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.options import OUT, ROUNDS
from bench.sides import IMAGES, MODELS, Failed, Side, Spec, in_turn
from parity.core.files import write_all
from parity.host.environment import commit
from tools.tables import markdown as table
from tools.tables import processor, publish

Record = dict[str, Any]

LAYOUTS = ("contiguous", "channels_last", "compile")
"""PyTorch's, as tables call them."""

HEAD = (
    "what", "PyTorch", "channels last", "compiled", "JAX", "ratio", "least, most",
    "GFLOP/s PyTorch", "JAX", "GiB PyTorch", "JAX", "relative error",
)  # fmt: skip
HEADS = (HEAD,)

SIZES = {
    "cogvideox": ((9, 64, 64), (17, 64, 64), (9, 128, 128)),
    "kl": ((1, 256, 256), (1, 512, 512)),
    "wan": ((9, 64, 64), (9, 128, 128)),
}
TINY = {"cogvideox": ((9, 16, 24),), "kl": ((1, 32, 32),), "wan": ((9, 16, 24),)}


def measure(spec: Spec, rounds: int) -> Record:
    """Seconds, ratios, memory and operations of one direction at one size."""
    last = "channels_last" if spec.model in IMAGES else "channels_last_3d"
    specs = {
        name: replace(spec, framework="PyTorch", layout=last if name == "channels_last" else name)
        for name in LAYOUTS
    }
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(Side(side)) for name, side in {**specs, "JAX": spec}.items()
        }
        record = in_turn(sides, rounds)
        record["operations"] = sides["contiguous"].ask("operations")
        output, reference = sides["JAX"].ask("output"), sides["contiguous"].ask("output")
    off = np.sqrt(np.mean((output - reference) ** 2) / np.mean(reference**2))
    record["relative rms error"] = float(off)
    return record | compared(record)


def compared(record: Mapping[str, Any]) -> Record:
    """PyTorch's fastest layout, and the median over turns of its seconds by the port's."""
    medians = {layout: record[layout]["median"] for layout in LAYOUTS if "median" in record[layout]}
    fastest = min(medians, key=lambda layout: medians[layout])
    turns = zip(record[fastest]["seconds"], record["JAX"]["seconds"], strict=True)
    ratios = [theirs / ours for theirs, ours in turns]
    return {"fastest": fastest, "ratios": ratios, "ratio": statistics.median(ratios)}


def markdown(report: Mapping[str, Any]) -> str:
    """The table of a report."""
    lines = ["# The port against PyTorch on a CPU", "", f"`{report['command']}`", ""]
    lines += [f"- {name}: {value}" for name, value in report["environment"].items()]
    peaks = report["products"]
    lines += [
        "- a product of two matrices of float32, operations a second: "
        + ", ".join(f"{name} {value / 1e9:.0f} G" for name, value in peaks.items()),
        "",
        "Seconds are medians of runs in turn, after one that is not counted; float32, and the",
        "configurations are " + ", ".join(f"{m} `{c}`" for m, c in report["configs"].items()) + ".",
        "The ratio is that of PyTorch's fastest to the port, turn by turn, and its median: above 1",
        "the port is faster. GFLOP/s count the convolutions as they are written, also where fewer",
        "operations do. GiB are the process's memory at the highest point of its runs.",
        "",
        table(HEAD, map(cells, report["rows"])),
    ]
    return "\n".join(lines) + "\n"


def cells(row: Record) -> tuple[str, ...]:
    """The row of a table."""
    sides = [row[name] for name in (*LAYOUTS, "JAX")]
    fastest, ours = row[row["fastest"]], row["JAX"]
    return (
        f"{row['model']} {row['direction']} {row['size']}",
        *(f"{side['median']:.2f}" if "median" in side else side["skipped"] for side in sides),
        f"**{row['ratio']:.2f}**",
        f"{min(row['ratios']):.2f}, {max(row['ratios']):.2f}",
        *(f"{row['operations'] / side['median'] / 1e9:.0f}" for side in (fastest, ours)),
        *(f"{side['resident'] / 2**30:.1f}" for side in (fastest, ours)),
        f"{row['relative rms error']:.1e}",
    )


def environment() -> tuple[Record, Record]:
    """The machine and what each framework says of itself; and the speed of its matrix products."""
    found: Record = {
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
    }
    products = {}
    for framework in ("PyTorch", "JAX"):
        with Side(Spec(framework, "cpu", "small", "decode", "float32", 1, 16, 16)) as side:
            about = side.ask("about")
            found[framework] = ", ".join(f"{name} {value}" for name, value in about.items())
            products[framework] = side.ask("product")
    return found, products


def machine() -> str:
    """Return the processor and its cores as a file name, `cpu-amd-epyc-avx2-2-cores`."""
    words = re.findall(r"[a-z0-9]+", f"cpu {processor()} {os.cpu_count()} cores".lower())
    return "-".join(words)


@click.command()
@click.option(
    "--model",
    "models",
    type=click.Choice(list(MODELS)),
    multiple=True,
    default=list(MODELS),
    show_default=True,
)
@ROUNDS
@click.option("--tiny", is_flag=True, help="Small models and a small input.")
@OUT
def main(models: tuple[str, ...], rounds: int, tiny: bool, out: Path) -> None:
    """Measure row by row, and write the table after each."""
    about, products = environment()
    configs = {model: "small" if tiny else MODELS[model] for model in models}
    report: Record = {
        "command": shlex.join(["python", "-m", "bench.cpu", *sys.argv[1:]]),
        "environment": about,
        "configs": configs,
        "products": products,
        "rows": [],
    }
    sizes = TINY if tiny else SIZES
    for model, size in ((one, size) for one in models for size in sizes[one]):
        for direction in ("encode", "decode"):
            row = {"model": model, "direction": direction, "size": "x".join(map(str, size))}
            click.echo(f"{model} {direction} {row['size']}", err=True)
            spec = Spec("JAX", "cpu", configs[model], direction, "float32", *size, model=model)
            try:
                found = measure(spec, rounds)
            except Failed as failure:
                raise click.ClickException(
                    f"{model} {direction} {row['size']}: {failure}"
                ) from failure
            report["rows"].append(row | found)
            texts = {".json": dumps(report, indent=1), ".md": markdown(report)}
            write_all(out, {machine() + end: text for end, text in texts.items()})
    publish(HEAD, map(cells, report["rows"]))


if __name__ == "__main__":
    main()
