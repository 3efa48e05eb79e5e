"""The weight map as lines, as a table, and as what a reader must know before a PASS."""

from collections.abc import Sequence

from parity.core.tensors import Weight
from parity.core.verdicts import Coverage, Fault
from parity.report.table import csv, cut

COLUMNS = (
    *("name", "nnx_name", "kind", "shape", "nnx_shape"),
    *("transform", "cause", "finding", "declared"),
)
"""The columns of `weights.csv`."""

NOTED = 5
"""How many of the tensors that something is wrong with a note names."""


def weights_csv(weights: Sequence[Weight]) -> str:
    """One line per tensor, columns as in `COLUMNS`; shapes as 3x3x8."""
    lines = (
        {**vars(line), "shape": _shape(line.shape), "nnx_shape": _shape(line.nnx_shape)}
        for line in weights
    )
    return csv(lines, COLUMNS)


def weight_lines(weights: Sequence[Weight], coverage: Coverage) -> list[str]:
    """Count of the reference's tensors that the port holds, and what is wrong with the others.

    Those that make the coverage incomplete are listed there.
    """
    names = dict.fromkeys(line.name for line in weights if line.name)
    other = {line.name for line in weights if line.finding}
    declared = {line.name for line in weights if line.name and line.finding and not line.wrong}
    reasons = f", {len(declared)} declared" if declared else ""
    wrong = [
        f"**{line.cause}**: {line.text}" if line.cause else line.text
        for line in weights
        if line.wrong and line.text not in coverage.unmatched_tensors
    ]
    return [
        f"weights: {len(names) - len(other - {''})} of {len(names)} tensors equal{reasons}",
        *cut(wrong, "and {} more, all of them in weights.csv"),
    ]


def weight_notes(
    weights: Sequence[Weight], coverage: Coverage, faults: Sequence[Fault]
) -> tuple[str, ...]:
    """Weights that are not the reference's although no call of their module is at fault."""
    loose = [
        line.text
        for line in weights
        if line.wrong and line.text not in coverage.unmatched_tensors
        if not any(_told(line, fault) for fault in faults)
    ]
    if not loose:
        return ()
    more = f"; and {len(loose) - NOTED} more" if len(loose) > NOTED else ""
    text = "; ".join(loose[:NOTED])
    calm = "" if faults or not coverage.complete else ", though no call fails"
    are = "1 weight is" if len(loose) == 1 else f"{len(loose)} weights are"
    return (f"{are} not the reference's{calm}: {text}{more}",)


def _told(line: Weight, fault: Fault) -> bool:
    """True for a fault of this module, or of one around it and for this reason."""
    around = not fault.path or line.path.startswith(f"{fault.path}.")
    return fault.path == line.path or (around and fault.cause == line.cause)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
