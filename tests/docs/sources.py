"""What commands wrote, as numbers: committed reports, and tables of the documents themselves."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.docs.documents import ROOT, blocks
from tests.docs.figures import NUMBER, read

GIB = 2**30
PARAMETERS = 215_583_907
"""Of the full model; `tests/test_full_size.py` counts them."""

Cells = list[list[str]]


def fewest_cores() -> int:
    """Of the machines whose reports are committed."""
    names = ("baseline/report.json", "bench/cpu.json", "bench/avx2/cpu.json")
    return min(report(name)["environment"]["cores"] for name in names)


@cache
def report(name: str) -> Any:
    """A JSON file below `reports`."""
    return json.loads((ROOT / "reports" / name).read_text())


def cells(document: str, heading: str) -> Cells:
    """The rows of the first table below a heading, or below any words."""
    lines = read(document).split(heading, 1)[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|")) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def numbers(document: str, pattern: str) -> list[float]:
    """The groups of the first match of a pattern, whose spaces are any white space."""
    pattern = pattern.replace("#", f"({NUMBER})").replace(" ", r"\s+")
    found = re.search(pattern, read(document))
    assert found, f"not in {document}: {pattern}"
    return [float(group.replace(",", "")) for group in found.groups()]


def printed(document: str, words: str) -> float:
    """The number after these words in a `console` block: what it prints is tested elsewhere."""
    shown = " ".join(" ".join(x.text.split()) for x in blocks(document) if x.language == "console")
    found = re.search(re.escape(words) + rf"\s*({NUMBER})", shown)
    assert found, f"not printed in {document}: {words}"
    return float(found[1])


def cpu_rows(folder: str = "") -> list[str]:
    """The table of `make bench`."""
    from bench.cpu import markdown

    return rows(markdown({"config": "default"} | report(f"bench/{folder}cpu.json")))


def tpu(call: str) -> list[float]:
    """GiB that a call takes on a TPU chip, and that a chip has if those are more."""
    from bench.tpu_aot import CALLS, markdown

    known = report("bench/tpu_aot.json")
    line = next(one for one in rows(markdown(known, CALLS)) if one.startswith(f"| {call} |"))
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def tpu_program(name: str, what: str) -> float:
    """GiB of one kind that a program of a TPU takes."""
    return float(report("bench/tpu_aot.json")["programs"][name][what]) / GIB


def rows(table: str) -> list[str]:
    """The lines of a table but for its head."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [line for line in lines if "**" in line or not line.startswith("| what")]


def formulations() -> Iterator[tuple[str, str, list[float]]]:
    """Shape, formulation, and ms, GFLOP/s and error with AVX2 (if measured) and with AVX-512."""
    for shape, name, *measured in cells("docs/performance.md", "(`--large` for 240x360"):
        if shape.startswith("("):
            yield shape, name, [float(cell) for cell in measured if cell]


def formulation(shape: str, name: str) -> list[float]:
    """The numbers of one row of that table."""
    return next(found for one, other, found in formulations() if (one, other) == (shape, name))


def compiling() -> dict[tuple[str, str], list[float]]:
    """First call, later calls (seconds) and GiB, of each call and way."""
    table = cells("docs/performance.md", "every row a process that has compiled nothing before")
    return {(call, way): [float(cell) for cell in rest] for call, way, *rest in table}


def gains() -> list[float]:
    """How many times as fast compiled steps and one program are as layers compiled one by one."""
    found = compiling()
    layers, steps, whole = (
        found["default model, 9 frames of 64x64", way][1]
        for way in ("layer by layer", "steps", "one program")
    )
    return [layers / steps, layers / whole]


def channels_last() -> list[float]:
    """Per cent by which the 3-D convolution is faster with channels last: the largest gain."""
    pairs = [(formulation(shape, "3-D"), formulation(shape, "3-D, channels first"))
             for shape in {shape for shape, *_ in formulations()}]  # fmt: skip
    return [max(100 * (first[-3] / last[-3] - 1) for last, first in pairs)]


def sharding(chips: int) -> list[float]:
    """Speedup and efficiency in per cent of decoding the largest video on so many chips."""
    rows = report("bench/sharding.json")["extrapolated"]
    wanted = {"direction": "decode", "size": LARGEST, "chips": chips}
    row = next(one for one in rows if one.items() >= wanted.items())
    return [row["speedup"], 100 * row["speedup"] / chips]


LARGEST = [13, 96, 170]
"""The latent of 49x768x1360."""


def off_the_formula(what: str, direction: str | None = None) -> list[float]:
    """Per cent by which what is compiled is more than the formula says, where that says any."""
    return sorted(
        100 * (one[what] / one[f"{what}_formula"] - 1)
        for one in report("bench/sharding.json")["compiled"]
        if one[f"{what}_formula"]
        and (direction is None or (one["direction"], one["split"]) == (direction, "width"))
    )
