"""The port against PyTorch on a GPU: how near to float64, how long, and in how much memory.

    make bench-gpu
    make bench-gpu ARGS='--minutes 20'
    make bench-gpu ARGS='--model kl'

The GPU builds of JAX and of PyTorch that are installed are used, whatever their versions. What one
of them cannot do (no GPU, too little memory, no compiler) is a row that says so. Rows come in the
order of their importance, and each is written to `reports/bench/gpu.json` and `gpu.md` when it is
done (`gpu-kl` of another model). Both sides of a row take turns, run by run. `--device cpu --tiny`
shows that it works.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
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

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One comparison: `accuracy` against PyTorch's float64 on the CPU, or `time`."""

    kind: str
    direction: str
    dtype: str
    frames: int
    height: int
    width: int
    layout: str = "contiguous"
    model: str = "cogvideox"

    @property
    def name(self) -> str:
        """Name in the JSON file and of the folder of its profile."""
        size = f"{self.frames}x{self.height}x{self.width}"
        return f"{self.kind} {self.direction} {self.dtype} {size} {self.layout}"

    def spec(self, framework: str, device: str, config: str) -> Spec:
        """Settings that the process of one side gets."""
        shape = (self.frames, self.height, self.width)
        layout = self.layout if framework == "PyTorch" else "contiguous"
        side = (framework, device, config, self.direction, self.dtype)
        return Spec(*side, *shape, layout, self.model)


def plan(tiny: bool, model: str = "cogvideox") -> list[Row]:
    """Every row, the most important first."""
    images = model in IMAGES
    frames = 1 if images else 9
    channels_last = "channels_last" if images else "channels_last_3d"
    clip = (frames, 16, 24) if tiny else (frames, 64, 64)
    small, large = ((1, 512, 512), (1, 1024, 1024)) if images else ((49, 480, 720), (49, 768, 1360))
    if tiny:
        small, large = (frames, 16, 24), (frames, 32, 24)
    both = ("decode", "encode")
    accuracy = [
        Row("accuracy", direction, dtype, *clip, model=model)
        for dtype in ("float32", "tf32", "bfloat16")
        for direction in both
    ]
    timed = [
        ("bfloat16", small, "contiguous"),
        ("bfloat16", large, "contiguous"),
        ("bfloat16", small, channels_last),
        ("float32", small, "contiguous"),
        ("bfloat16", small, "compile"),
        ("bfloat16", large, channels_last),
        ("bfloat16", large, "compile"),
    ]
    return accuracy + [
        Row("time", direction, dtype, *size, layout, model)
        for dtype, size, layout in timed
        for direction in both
    ]


def accuracy(row: Row, device: str, config: str, references: dict[str, np.ndarray]) -> Record:
    """Relative rms and largest error of each side; `references` keeps float64's outputs."""
    if row.direction not in references:
        exact = replace(row.spec("PyTorch", "cpu", config), dtype="float64")
        with Side(exact) as side:
            references[row.direction] = side.ask("output")
    record: Record = {}
    for framework in ("PyTorch", "JAX"):
        with Side(row.spec(framework, device, config)) as side:
            try:
                output = side.ask("output")
                record[framework] = distance(output, references[row.direction])
            except Failed as failure:
                record[framework] = {"skipped": str(failure)}
    return record


def distance(output: np.ndarray, reference: np.ndarray) -> Record:
    """Relative rms error, and the largest error in units of the reference's largest value."""
    off = output - reference
    return {
        "rms": float(np.sqrt(np.mean(off**2) / np.mean(reference**2))),
        "max": float(np.abs(off).max() / np.abs(reference).max()),
    }


def timing(row: Row, device: str, config: str, rounds: int, profile: Path | None) -> Record:
    """Seconds and memory of each side, in turn; one after the other where memory is too little.

    Where it is too little for the port alone, the port runs in tiles, and the record says so.
    """
    specs = {name: row.spec(name, device, config) for name in ("PyTorch", "JAX")}
    with Side(specs["PyTorch"]) as theirs, Side(specs["JAX"]) as ours:
        try:
            record = in_turn({"PyTorch": theirs, "JAX": ours}, rounds)
            return record | _profiled(ours, record["JAX"], row, profile)
        except Failed:
            pass  # the memory of one may do for each of them
    record = {"alone": True}
    for name, spec in specs.items():
        for tiled in (False, True) if name == "JAX" else (False,):
            with Side(spec) as side:
                try:
                    if tiled:
                        side.ask("tile")
                    record |= in_turn({name: side}, rounds)
                    record[name]["tiled"] = tiled
                    if name == "JAX":
                        record |= _profiled(side, record[name], row, profile)
                    break
                except Failed as failure:
                    record[name] = {"skipped": str(failure), "tiled": tiled}
    return record


def _profiled(side: Side, record: Record, row: Row, folder: Path | None) -> Record:
    if folder is None or "skipped" in record:
        return {}
    target = folder / row.name.replace(" ", "_")
    try:
        side.ask("profile", str(target))
    except Failed as failure:
        return {"profile": f"skipped: {failure}"}
    return {"profile": str(target)}


ERRORS_HEAD = ("what", "dtype", "PyTorch rms", "max", "JAX rms", "max")
TIMES_HEAD = (
    "what", "dtype", "PyTorch", "PyTorch s", "GiB", "JAX s", "GiB", "JAX / PyTorch", "",
)  # fmt: skip


def markdown(report: Mapping[str, Any]) -> str:
    """The tables of a report."""
    lines = ["# The port against PyTorch on a GPU", "", f"`{report['command']}`", ""]
    lines += [f"- {name}: {value}" for name, value in report["environment"].items()]
    lines += [
        "",
        "Errors are against PyTorch's float64 on the CPU: relative rms, and the largest in units",
        "of the largest value. float32 is without TF32 on both sides, tf32 with it on both.",
        "",
        table(ERRORS_HEAD, (_errors(row) for row in report["rows"] if row["kind"] == "accuracy")),
        "",
        "Medians in seconds, both sides in turn unless alone; GiB at the highest point.",
        "",
        table(TIMES_HEAD, (_times(row) for row in report["rows"] if row["kind"] == "time")),
    ]
    return "\n".join(lines) + "\n"


def _errors(row: Record) -> list[str]:
    cells = [f"{row['direction']} {row['size']}", row["dtype"]]
    for side in ("PyTorch", "JAX"):
        found = row.get(side, {"skipped": row.get("skipped", "")})
        if "rms" in found:
            cells += [f"{found['rms']:.1e}", f"{found['max']:.1e}"]
        else:
            cells += [found["skipped"], ""]
    return cells


def _times(row: Record) -> list[str]:
    cells = [f"{row['direction']} {row['size']}", row["dtype"], row["layout"]]
    medians = []
    for side in ("PyTorch", "JAX"):
        found = row.get(side, {"skipped": row.get("skipped", "")})
        medians.append(found.get("median"))
        cells.append(f"{found['median']:.3f}" if "median" in found else found["skipped"])
        cells.append(f"{found['peak'] / 2**30:.1f}" if "peak" in found else "")
    cells.append(f"{medians[1] / medians[0]:.2f}" if None not in medians else "")
    notes = ["alone"] if row.get("alone") else []
    notes += ["JAX in tiles, which is another function"] * bool(row.get("JAX", {}).get("tiled"))
    return [*cells, ", ".join(notes)]


def environment(device: str, config: str, model: str = "cogvideox") -> Record:
    """The machine, the driver, and what each framework says of itself."""
    found: Record = {"model": model, "commit": commit(), "python": platform.python_version()}
    found["platform"] = platform.platform()
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        found["nvidia-smi"] = "; ".join((done.stdout or done.stderr).splitlines())
    for framework in ("PyTorch", "JAX"):
        spec = Spec(framework, device, config, "decode", "float32", 1, 16, 16, model=model)
        with Side(spec) as side:
            try:
                about = side.ask("about")
                found[framework] = ", ".join(f"{name} {value}" for name, value in about.items())
            except Failed as failure:
                found[framework] = f"skipped: {failure}"
    return found


def measure(
    rows: Sequence[Row], run: Callable[[Row], Record], late: Callable[[], bool], minutes: float
) -> Iterator[Record]:
    """Yield the record of each row; those after the time is up say that they were left out."""
    for row in rows:
        size = f"{row.frames}x{row.height}x{row.width}"
        about = {
            "kind": row.kind,
            "direction": row.direction,
            "dtype": row.dtype,
            "size": size,
            "layout": row.layout,
        }
        if late():
            found = {"skipped": f"left out: {minutes:g} minutes were over"}
        else:
            try:
                found = run(row)
            except Failed as failure:
                found = {"skipped": str(failure)}
        yield about | found


@click.command()
@click.option("--model", type=click.Choice([*MODELS]), default="cogvideox", show_default=True)
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="No row is begun after that.",
)
@ROUNDS
@click.option("--device", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True)
@click.option(
    "--rows",
    default="*",
    metavar="GLOB",
    help="Only rows of such a name, as 'time decode bfloat16 49x480x720 contiguous'.",
)
@click.option("--tiny", is_flag=True, help="A small model and small videos.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also profile one run of the port in every row that is timed.",
)
@OUT
def main(
    model: str,
    minutes: float,
    rounds: int,
    device: str,
    tiny: bool,
    rows: str,
    profile: Path | None,
    out: Path,
) -> None:
    """Measure row by row, and write the tables after each."""
    config = "small" if tiny else MODELS[model]
    name = "gpu" if model == "cogvideox" else f"gpu-{model}"
    begun = time.monotonic()
    references: dict[str, np.ndarray] = {}

    def run(row: Row) -> Record:
        if row.kind == "accuracy":
            return accuracy(row, device, config, references)
        return timing(row, device, config, rounds, profile)

    def late() -> bool:
        return time.monotonic() - begun > 60 * minutes

    with tempfile.TemporaryDirectory() as compiled:
        # For the processes to come: two frameworks share the memory, and a row compiles what no
        # row before has.
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
        report: Record = {
            "command": shlex.join(["python", "-m", "bench.gpu", *sys.argv[1:]]),
            "environment": environment(device, config, model),
            "rows": [],
        }
        chosen = [row for row in plan(tiny, model) if fnmatchcase(row.name, rows)]
        for record in measure(chosen, run, late, minutes):
            report["rows"].append(record)
            files = {"json": dumps(report, indent=1), "md": markdown(report)}
            write_all(out, {f"{name}.{kind}": text for kind, text in files.items()})
            click.echo(dumps(record))


if __name__ == "__main__":
    main()
