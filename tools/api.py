"""Write `docs/api.md`: the public names of both packages with their docstrings.

python -m tools.api
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

OUT = Path(__file__).parent.parent / "docs" / "api.md"

HEAD = """# Public names

Made by `python -m tools.api` from the docstrings.
"""

SECTIONS = ("Args:", "Returns:", "Raises:", "Example:")

Named = ast.ClassDef | ast.FunctionDef


def as_markdown() -> str:
    """The whole page."""
    import jaxvae
    import parity

    parts = [HEAD]
    for package in (parity, jaxvae):
        parts.append(f"## {package.__name__}\n\n{_docstring(package)}\n")
        parts += [_entry(package, name) for name in sorted(package.__all__)]
    return "\n".join(parts)


def _entry(package: ModuleType, name: str) -> str:
    """A heading, the signature and the docstring; of a class its methods and fields too."""
    found = getattr(package, name)
    title = f"### {package.__name__}.{name}"
    if isinstance(found, ModuleType):
        inside = [_entry(found, one) for one in _functions(found)]
        return "\n".join([f"{title}\n\n{_docstring(found)}\n", *inside])
    if not (inspect.isclass(found) or inspect.isroutine(found)):  # a name of a type
        return f"{title}\n\n`{found}`\n"
    shown = _block(_node(found), name)
    lines = [title, "", *shown, *([""] if shown else []), _docstring(found), ""]
    if inspect.isclass(found):
        for owner in reversed([one for one in found.__mro__ if _ours(one)]):
            lines += _members(_node(owner))
        lines += [""] if lines[-1] else []
    return "\n".join(lines)


def _functions(module: ModuleType) -> list[str]:
    own = inspect.getmembers(module, inspect.isfunction)
    return [name for name, one in own
            if one.__module__ == module.__name__ and not name.startswith("_")]  # fmt: skip


def _ours(found: type) -> bool:
    return found.__module__.partition(".")[0] in ("parity", "jaxvae")


def _node(found: Any) -> Named:
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found)))).body[0]
    assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
    return node


def _docstring(found: Any) -> str:
    """With a list for each section of arguments or errors."""
    lines, section = [], ""
    for line in (inspect.getdoc(found) or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if line in SECTIONS or (section and line and indent == 0):
            section = line.strip(":") if line in SECTIONS else ""
        if section == "Returns" and indent:
            line = line.strip()
        elif section in ("Args", "Raises") and indent == 4:
            name, _, text = line.strip().partition(": ")
            line = f"- `{name}`: {text}"
        elif section in ("Args", "Raises") and indent > 4:
            line = f"  {line.strip()}"
        lines += [line, ""] if line in SECTIONS else [line]
    return "\n".join(lines)


def _block(node: Named, name: str) -> list[str]:
    """The signature, where it says more than the name."""
    if isinstance(node, ast.ClassDef):
        inits = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        node = next((one for one in inits if one.name == "__init__"), None)  # type: ignore[assignment]
        if node is None:
            return []
    assert isinstance(node, ast.FunctionDef)
    return [f"    {line}" for line in _signature(node, name)]


def _signature(node: ast.FunctionDef, name: str) -> list[str]:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    arguments = "" if arguments in ("self", "cls") else arguments
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and name[0].islower() else ""
    return textwrap.wrap(f"{name}({arguments}){returns}", 94, subsequent_indent="    ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def _members(node: Named) -> Iterator[str]:
    """A line for each field and method that is public, with the first sentence about it."""
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            about = _sentence(after.value.value) if _is_text(after) else ""  # type: ignore[union-attr]
            if not one.target.id.startswith("_"):
                default = ast.unparse(one.value) if one.value else ""
                default = f" = {default}" if default and not default.startswith("field(") else ""
                yield f"- `{one.target.id}: {ast.unparse(one.annotation)}{default}`{about}"
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            about = _sentence(ast.get_docstring(one) or "")
            decorated = {ast.unparse(decorator) for decorator in one.decorator_list}
            if decorated & {"property", "cached_property"}:
                yield f"- `{one.name}`{about}"
            else:
                yield f"- `{' '.join(' '.join(_signature(one, one.name)).split())}`{about}"


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _sentence(text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split())
    return f": {first}" if first else ""


def main() -> None:
    """Write the page."""
    OUT.write_text(as_markdown())


if __name__ == "__main__":
    main()
