"""The page: everything in it comes from the report, and nothing is fetched."""

import base64
import hashlib
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from parity.core.exceptions import escaped
from parity.core.globs import path_name
from parity.report.contents import Contents
from parity.report.diff import INPUTS, Diff
from parity.report.excerpts import excerpt, side_by_side
from parity.report.faults import fault_parts, fault_place, grouped_faults
from parity.report.html.data import page_data
from parity.report.html.picture import VIRIDIS, picture
from parity.report.markdown import markdown_head
from parity.report.modules import module_tree
from parity.report.sections import (
    BOUNDED_KEY,
    GRADE_KEY,
    kind_cells,
    ladder_cells,
    number,
    plain,
    sections,
)

if TYPE_CHECKING:
    from jinja2 import Environment


LISTED = 10
"""How many faults, and how many notes, a notebook lists."""


STATED = ("command", "commit")
"""Entries of the environment that have a place of their own."""


def environment() -> "Environment":
    """Templates that escape whatever is put into them, and refuse what they do not know."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("parity.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: escaped(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    found.filters |= {"number": number, "path": path_name, "plain": plain, "words": words}
    found.filters |= {"place": fault_place, "parts": fault_parts, "excerpt": excerpt}
    found.filters |= {"picture": picture, "side_by_side": side_by_side}
    return found


def as_html(report: Contents) -> str:
    """One document, with its style, script and data: it opens without a network.

    What is not escaped holds no text of a report: style and script, ours and uPlot's.
    """
    templates = environment()
    facts = report.facts.items()
    scripts = ("uplot/uPlot.iife.min.js", "page.js", "charts.js")
    script = "".join(_source(name) for name in scripts)
    return templates.get_template("page.html").render(
        report=report,
        style=Markup(_source("uplot/uPlot.min.css") + _source("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=page_data(report) | {"markdown": markdown_head(report)},
        groups=grouped_faults(report.faults),
        inputs={name: value for name, value in facts if name in INPUTS},
        run={name: value for name, value in facts if name not in INPUTS},
        environment={k: v for k, v in report.environment.items() if k not in STATED},
        ramp=", ".join(VIRIDIS),
        root=module_tree(report),
        rungs=ladder_cells(report),
        grade_key=GRADE_KEY,
        kinds=kind_cells(report),
        bounded_key=BOUNDED_KEY,
        sections={section.title: section.lines for section in reversed(sections(report))},
    )


def diff_html(found: Diff, factor: float | None) -> str:
    """The difference between two reports as one document, with every change, and no script."""
    template = environment().get_template("diff.html")
    return template.render(diff=found, factor=factor, style=Markup(_source("page.css")))


def as_notebook(report: Contents, page: Path | None = None) -> str:
    """Verdict, ladder and faults as a piece of a notebook: no script, a style that touches nothing
    else, the notebook's colours. A link leads to `page` from the working directory.
    """
    return (
        environment()
        .get_template("notebook.html")
        .render(
            report=report,
            groups=grouped_faults(report.faults),
            rungs=ladder_cells(report),
            listed=LISTED,
            page=page and _link(page),
        )
    )


def _link(page: Path) -> str:
    try:
        return os.path.relpath(page)
    except (ValueError, OSError):  # on another drive, or the working directory is gone
        return page.as_uri()


def _source(name: str) -> str:
    return "\n" + files("parity.report.html").joinpath("templates", name).read_text("utf-8")


def words(text: str) -> Markup:
    """A sentence of the report, whose `code` and **bold** are those of Markdown."""
    safe = str(escape(escaped(text)))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))
