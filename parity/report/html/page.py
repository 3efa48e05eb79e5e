"""The page: everything in it comes from the report, and nothing is fetched."""

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from parity.core.globs import path_name
from parity.report.contents import Contents
from parity.report.excerpts import excerpt
from parity.report.html.data import page_data
from parity.report.html.drift import Point, drift
from parity.report.html.error_maps import pictures
from parity.report.modules import module_tree
from parity.report.sections import (
    BOUNDED_KEY,
    GRADE_KEY,
    fault_place,
    fault_reason,
    number,
    sections,
    summary_cells,
)
from parity.report.table import by_kind, summarise

if TYPE_CHECKING:
    from jinja2 import Environment


LISTED = 10
"""How many faults, and how many notes, a notebook lists."""


def environment() -> "Environment":
    """Templates that escape whatever is put into them, and refuse what they do not know."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("parity.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    found.filters |= {"number": number, "path": path_name, "plain": plain, "words": words}
    found.filters |= {"place": fault_place, "reason": fault_reason, "excerpt": excerpt}
    return found


def as_html(report: Contents) -> str:
    """One document, with its style, script, pictures and data: it opens without a network.

    What is not escaped is our own: style, script, and pictures, which hold no text of a report.
    """
    env = environment()
    chart = drift(report.rows, report.faults)
    script = _source(env, "page.js")
    return env.get_template("page.html").render(
        report=report,
        style=Markup(_source(env, "page.css")),
        script=Markup(script),
        script_hash=_hash(script),
        data=page_data(report, chart),
        drift=chart,
        drift_svg=Markup(chart.svg),
        root=module_tree(report),
        pictures=_pictures(report),
        rungs=[summary_cells(line) for line in summarise(report.rows, report.rungs)],
        grade_key=GRADE_KEY,
        kinds=[summary_cells(line) for line in by_kind(report.rows)],
        bounded_key=BOUNDED_KEY,
        sections={section.title: section.lines for section in reversed(sections(report))},
        calls=len(chart.points),
        measured=sum(point.measured for point in chart.points),
        start=next((i for i, point in enumerate(chart.points) if _is_of(point, report)), 0),
    )


def as_notebook(report: Contents) -> str:
    """Verdict, ladder and faults as a piece of a notebook: no script, a style that touches nothing
    else, the notebook's colours.
    """
    rungs = [summary_cells(line) for line in summarise(report.rows, report.rungs)]
    template = environment().get_template("notebook.html")
    return template.render(report=report, rungs=rungs, listed=LISTED)


def _is_of(point: Point, report: Contents) -> bool:
    """True for the call of the first fault."""
    first = report.first_fault
    return first is not None and (
        (point.case, point.path, point.call) == (first.case, first.path, first.call)
    )


def _source(env: "Environment", name: str) -> str:
    assert env.loader is not None
    text, _, _ = env.loader.get_source(env, name)
    return f"\n{text}"


def _hash(script: str) -> str:
    """Digest by which the page's policy knows its script: no other runs."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _pictures(report: Contents) -> dict[int, Any]:
    """The pictures of faults by number, as far as they have some."""
    return {
        at: Markup(pictures(fault.error_map, f"fault-{at}"))
        for at, fault in enumerate(report.faults, 1)
        if fault.error_map is not None
    }


def words(text: str) -> Markup:
    """A sentence of the report, whose `code` and **bold** are those of Markdown."""
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


def plain(value: Any) -> str:
    """A fact, or an entry of the environment, as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)
