"""Pictures of the HTML report and of the terminal for the documentation: a report with a planted
mistake, in both colour schemes.

    python -m tools.screenshots

needs Chromium and chromedriver on the path, and a minute. It writes into `docs/images`.
"""

import base64
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from tools.browser import chromium, missing, prefer

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "images"
PARTS = {
    "summary": ("header", "#fault-1 .excerpts"),
    "fault": ("#fault-1", "#fault-1"),
    "drift": ("#drift-section", "#drift-section"),
    "rows": ("#rows", "#rows"),
}
"""Pictures by name: the elements that they begin and end with."""

THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
"""Colours of the terminal."""

MARGIN = 8
"""Pixels around a picture."""

LARGEST = 300_000
"""Bytes of a picture."""


def main() -> None:
    """Make the report, then the pictures."""
    if missing():
        sys.exit(f"screenshots: {missing()}")
    sys.path.insert(0, str(ROOT / "tests" / "gate"))
    from mutants import POOLING

    import parity

    report = parity.run_pair(POOLING, {"config": "small", "size": "32x32"})
    OUT.mkdir(parents=True, exist_ok=True)
    for scheme in THEMES:
        (OUT / f"terminal-fault-{scheme}.svg").write_text(_terminal(report, scheme), "utf-8")
        click.echo(f"docs/images/terminal-fault-{scheme}.svg")
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = Path(folder) / "report.html"
        report.to_html(page)
        for scheme in ("light", "dark"):
            prefer(driver, scheme)
            driver.get(page.as_uri())
            driver.find_element("css selector", "#verdict").send_keys("FAIL")
            driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
            for name, (first, last) in PARTS.items():
                picture = _small(_shot(driver, first, last))
                (OUT / f"report-{name}-{scheme}.png").write_bytes(picture)
                click.echo(f"docs/images/report-{name}-{scheme}.png: {len(picture)} bytes")


def _terminal(report: Any, scheme: str) -> str:
    """The faults as a terminal shows them; the picture fetches no fonts."""
    from parity.report.terminal import show_verdict

    console = Console(record=True, width=104, file=io.StringIO(), force_terminal=True)
    show_verdict(report, console)
    name = f"parity run {report.name}"
    picture = console.export_svg(title=name, theme=THEMES[scheme], unique_id=scheme)
    return re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)


def _shot(driver: Any, first: str, last: str) -> bytes:
    """The page from the top of one element to the bottom of another."""
    top, bottom = (
        driver.execute_script(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return scrollY + (arguments[1] ? box.bottom : box.top)", selector, end,
        )
        for selector, end in ((first, False), (last, True))
    )  # fmt: skip
    top = max(top - MARGIN, 0)
    clip = {"x": 0, "y": top, "width": 1280, "height": bottom + MARGIN - top, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(shot["data"])


def _small(picture: bytes) -> bytes:
    """The same in 256 colours, which is what its text and lines need."""
    out = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(out, format="PNG", optimize=True)
    if out.tell() > LARGEST:
        sys.exit(f"screenshots: a picture of {out.tell()} bytes, more than {LARGEST}")
    return out.getvalue()


if __name__ == "__main__":
    main()
