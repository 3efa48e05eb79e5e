"""Text and numbers as the templates write them: everything is escaped."""

import re
from typing import Any

from markupsafe import Markup, escape


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
