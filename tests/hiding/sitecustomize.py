"""On PYTHONPATH this makes the packages that `HIDDEN` names packages that are not installed."""

import os
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset(os.environ["HIDDEN"].split(","))


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
