"""A report as a piece of a notebook: verdict, ladder, faults."""

from parity.report.contents import Contents
from parity.report.html.page import environment
from parity.report.sections import rung_cells
from parity.report.table import summarise

LISTED = 10
"""How many faults, and how many notes, are listed."""


def as_notebook(report: Contents) -> str:
    """HTML with no script, whose style touches nothing else and takes the notebook's colours."""
    template = environment().get_template("notebook.html")
    rungs = [rung_cells(line) for line in summarise(report.rows, report.rungs)]
    return template.render(report=report, rungs=rungs, listed=LISTED)
