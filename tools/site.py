"""A hook of mkdocs, for what the pages of `docs/` share with a code host: links to files of the
repository. Those to pages of the site lead there, of the others the text stays.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the site that lie beside `docs/`."""


def on_files(files: Files, config: Any) -> Files:
    """The files of `docs/`, and those of `OUTSIDE`."""
    root = Path(config.docs_dir).parent
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with the links of the site; mkdocs refuses those that lead nowhere."""
    root, docs = Path(config.docs_dir).parent, Path(config.docs_dir)
    beside = {page: root / name for name, page in OUTSIDE.items()}
    here = beside.get(page.file.src_uri, docs / page.file.src_uri).parent

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = Path(os.path.normpath(here / target))
        name = OUTSIDE.get(path.relative_to(root).as_posix())
        if name is None and path.exists() and not path.is_relative_to(docs):
            return str(text)
        return f"[{text}]({name or os.path.relpath(path, docs)}{anchor or ''})"

    return LINK.sub(led, markdown)
