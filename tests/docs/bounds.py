"""Whether a test holds a figure: its own code, and how far off the code lets the figure be."""

import ast
import re

from tests.docs.documents import ROOT
from tests.docs.figures import NUMBER, Figure

READS = re.compile(r"\b(numbers|cells|blocks|read|read_text|difference)\(")


def code_of(test: str) -> str:
    """The code of `tests/file.py::name`: see `source_of`."""
    path, _, name = test.partition("::")
    return source_of((ROOT / path).read_text(encoding="utf-8"), name)


def source_of(text: str, name: str) -> str:
    """The code of a function, and of what it names of its file: helpers, fixtures, constants."""
    known, lines = _named(text), text.splitlines()
    assert isinstance(known.get(name), ast.FunctionDef), f"no test {name}"
    wanted, seen, code = [name], set(), []
    while wanted:
        node = known.get(wanted.pop())
        if node is None or node in seen:
            continue
        seen.add(node)
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        code += lines[first - 1 : node.end_lineno]
        wanted += [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
        wanted += [x.arg for x in ast.walk(node) if isinstance(x, ast.arg)]
    return " ".join(" ".join(code).split())


def _named(text: str) -> dict[str, ast.stmt]:
    """What stands at the top level of a file, by name."""
    known: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            names = [x.id for one in node.targets for x in ast.walk(one) if isinstance(x, ast.Name)]
        else:
            names = [getattr(node, "name", "")]
        known |= dict.fromkeys(names, node)
    return known


def is_slow(test: str) -> bool:
    """Whether `make test` leaves out all of a test: some parameters may be slow, and others not."""
    path, _, name = test.partition("::")
    known = _named((ROOT / path).read_text(encoding="utf-8"))
    marks = [ast.unparse(one) for one in getattr(known[name], "decorator_list", ())]
    everywhere = ast.unparse(known["pytestmark"]) if "pytestmark" in known else ""
    return "pytest.mark.slow" in marks or "mark.slow" in everywhere


def reads(code: str, document: str) -> bool:
    """Whether a test takes what it compares with from the document."""
    table = document == "docs/performance.md" and "formulation(" in code
    return table or (f'"{document}"' in code and bool(READS.search(code)))


def problem(one: Figure, code: str) -> str:
    """Why the code of its test does not hold a figure; nothing if it does.

    Where it does not read the document each number of the passage has one of the bound near it.
    """
    if not one.bound or one.bound not in code:
        return f"{one.test} does not say {one.bound!r}"
    if reads(code, one.of or one.document):
        return ""
    shown, limits = sizes(one.text), sizes(one.bound)
    lost = [x for x in shown if not any(x / 2 <= limit <= 2 * x for limit in limits)]
    if shown and not lost:
        return ""
    return f"{one.test} neither reads {one.document} nor has {lost or one.text} in its bound"


def sizes(text: str) -> list[float]:
    """The numbers of a passage or of code; per cents as parts of one."""
    found = re.finditer(rf"(?<![\w.]){NUMBER}(\s*%)?", text.replace("a microsecond", "1e-6"))
    return [float(one[0].rstrip("% ").replace(",", "")) / (100 if one[1] else 1) for one in found]
