"""A report as one HTML file that needs nothing else, and as a piece of a notebook."""

from parity.report.html.page import as_html, as_notebook

__all__ = ["as_html", "as_notebook"]
