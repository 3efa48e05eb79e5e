"""Packages hidden from a process that a test starts, as if they were not installed."""

import os
import re
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

FOLDER = Path(__file__).with_name("hiding")
"""Holds a `sitecustomize.py` that hides what `HIDDEN` names."""


def without(*modules: str, path: str = "") -> dict[str, str]:
    """The variables of a process that does not find these modules, and looks at `path` first."""
    places = filter(None, (str(FOLDER), path, os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(places), "HIDDEN": ",".join(modules)}


def beyond(*names: str) -> tuple[str, ...]:
    """The modules that come with none of these distributions, nor with what they require."""
    held = _closure(*map(Requirement, names))
    return tuple(
        module
        for module, found in packages_distributions().items()
        if not held & set(map(_plain, found))
    )


def _closure(*wanted: Requirement) -> set[str]:
    """These distributions and what they require, by their plain names."""
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        one = waiting.pop()
        found.add(_plain(one.name))
        try:
            needed = [Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue  # of another system
        waiting += [
            other
            for other in needed
            if _plain(other.name) not in found
            and any(
                other.marker is None or other.marker.evaluate({"extra": extra})
                for extra in (one.extras or {""})
            )
        ]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
