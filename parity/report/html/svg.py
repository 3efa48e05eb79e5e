"""Figures of matplotlib as inline SVG whose colours are those of the page, light or dark."""

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INKS = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    "free": "#040404",
    "inclusive": "#050505",
    "exclusive": "#060606",
    "floor": "#070707",
    "bad": "#080808",
}
"""CSS variables of the page, and the colours that stand for them while matplotlib draws."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it takes the font of the page
    "svg.hashsalt": "parity",  # the same figure has the same ids, and so the same bytes
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INKS["ink"],
    "axes.edgecolor": INKS["muted"],
    "axes.labelcolor": INKS["ink"],
    "axes.facecolor": "none",
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "grid.color": INKS["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": INKS["muted"],
    "ytick.color": INKS["muted"],
    "xtick.labelcolor": INKS["ink"],
    "ytick.labelcolor": INKS["ink"],
}

NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Metadata that would differ from run to run, or say nothing."""


def powers_of_ten(value: float, _: float) -> str:
    """A tick of a logarithmic axis, as the rest of the report writes it."""
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if value else "0"


def drawn(name: str, width: float, height: float, draw: Callable[["Figure"], None]) -> str:
    """An `<svg>` of that size in inches, drawn by `draw`; its ids begin with `name`.

    Nothing that comes from a model may be drawn as text: pages write it themselves.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=NO_METADATA)
    return _inline(out.getvalue(), name)


def _inline(text: str, name: str) -> str:
    text = text[text.index("<svg") :]
    # several figures are on one page: each has ids of its own
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    # the width is that of the page, the shape that of the view box
    text = re.sub(r'<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)\bheight="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", text)
    for variable, stand_in in INKS.items():
        text = text.replace(stand_in, f"var(--{variable})")
    return text.strip()
