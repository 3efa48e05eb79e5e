"""A report as a folder of files, one in each form."""

from collections.abc import Sequence
from pathlib import Path

from parity.core.files import write_all
from parity.report.as_json import as_json
from parity.report.contents import Contents
from parity.report.html import as_html
from parity.report.junit import as_junit
from parity.report.markdown import as_markdown
from parity.report.table import csv
from parity.report.weights import to_weight_frame


def write_folder(report: Contents, folder: Path) -> Sequence[Path]:
    """Write all files, each whole or not at all; returns their paths."""
    files = {"layers.csv": csv(report.table)}
    for rung in report.rungs:
        files[f"{rung.name}.csv"] = csv(report.table[report.table["rung"] == rung.name])
    files["weights.csv"] = csv(to_weight_frame(report.weights))
    files["report.md"] = as_markdown(report)
    files["report.json"] = as_json(report)
    files["junit.xml"] = as_junit(report)
    try:
        files["report.html"] = as_html(report)
    finally:  # a picture that cannot be drawn loses no figure
        write_all(folder, files)
    return [folder / name for name in files]
