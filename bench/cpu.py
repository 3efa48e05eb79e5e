"""The port against PyTorch on this machine's CPU: how long, and how near.

    make bench
    make bench ARGS='--rounds 9'

Each size is a row, each side a process of its own: PyTorch as it comes, with channels last and
compiled, and the port. They take turns, run by run, and ratios are taken within a turn, so that a
machine that slows down slows both. Every row is written to `reports/bench/cpu.json` and `cpu.md`
when it is done.
"""

import os
import platform
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
from bench.sides import Failed, Side, Spec, in_turn
from parity.core.files import write_all
from parity.host.environment import commit
from tools.tables import markdown as table
from tools.tables import processor, publish

Record = dict[str, Any]

LAYOUTS = ("contiguous", "channels_last_3d", "compile")

HEAD = (
    "what", "PyTorch", "channels last", "compiled", "JAX", "ratio", "least, most",
    "GFLOP/s PyTorch", "JAX", "GiB PyTorch", "JAX", "relative error",
)  # fmt: skip
HEADS = (HEAD,)

SIZES = ((9, 64, 64), (17, 64, 64), (9, 128, 128))
TINY = ((9, 16, 24),)


def measure(spec: Spec, rounds: int) -> Record:
    """Seconds, ratios, memory and operations of one direction at one size."""
    specs = {layout: replace(spec, framework="PyTorch", layout=layout) for layout in LAYOUTS}
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
        "Seconds are medians of runs in turn, after one that is not counted; the model's",
        f"configuration is `{report['config']}`, in float32.",
        "The ratio is that of PyTorch's fastest to the port, turn by turn, and its median: above 1",
        "the port is faster. GFLOP/s count the convolutions as they are written, also where fewer",
        "operations do. GiB are the process's memory at its highest point.",
        "",
        table(HEAD, map(cells, report["rows"])),
    ]
    return "\n".join(lines) + "\n"


def cells(row: Record) -> tuple[str, ...]:
    """The row of a table."""
    sides = [row[name] for name in (*LAYOUTS, "JAX")]
    fastest, ours = row[row["fastest"]], row["JAX"]
    return (
        f"{row['direction']} {row['size']}",
        *(f"{side['median']:.2f}" if "median" in side else side["skipped"] for side in sides),
        f"**{row['ratio']:.2f}**",
        f"{min(row['ratios']):.2f}, {max(row['ratios']):.2f}",
        *(f"{row['operations'] / side['median'] / 1e9:.0f}" for side in (fastest, ours)),
        *(f"{side['resident'] / 2**30:.1f}" for side in (fastest, ours)),
        f"{row['relative rms error']:.1e}",
    )


def environment(config: str) -> tuple[Record, Record]:
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
        with Side(Spec(framework, "cpu", config, "decode", "float32", 1, 16, 16)) as side:
            about = side.ask("about")
            found[framework] = ", ".join(f"{name} {value}" for name, value in about.items())
            products[framework] = side.ask("product")
    return found, products


@click.command()
@ROUNDS
@click.option("--tiny", is_flag=True, help="A small model and a small video.")
@OUT
def main(rounds: int, tiny: bool, out: Path) -> None:
    """Measure row by row, and write the table after each."""
    config = "small" if tiny else "default"
    about, products = environment(config)
    report: Record = {
        "command": shlex.join(["python", "-m", "bench.cpu", *sys.argv[1:]]),
        "environment": about,
        "config": config,
        "products": products,
        "rows": [],
    }
    for size in TINY if tiny else SIZES:
        for direction in ("encode", "decode"):
            row = {"direction": direction, "size": "x".join(map(str, size))}
            click.echo(f"{direction} {row['size']}", err=True)
            try:
                found = measure(Spec("JAX", "cpu", config, direction, "float32", *size), rounds)
            except Failed as failure:
                raise click.ClickException(f"{direction} {row['size']}: {failure}") from failure
            report["rows"].append(row | found)
            write_all(out, {"cpu.json": dumps(report, indent=1), "cpu.md": markdown(report)})
    publish(HEAD, map(cells, report["rows"]))


if __name__ == "__main__":
    main()
