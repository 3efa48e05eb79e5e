"""What Python code is, as far as it decides what a reference computes.

Code of the user's is taken as it is compiled, with all that it refers to: an edit elsewhere in its
file changes nothing. Installed packages count as a whole, by the size and date of their files.
"""

import builtins
import dis
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

REFUSED = ("__import__", "eval", "exec", "globals", "input", "locals", "open")
"""Built-in functions after which nobody can say what the code depends on."""

TYPED_IN = "<typed in>"

OUTSIDE = ("os", "posix", "random", "time", "datetime", "socket", "subprocess", "secrets", "uuid")
"""Modules that code asks for what is not in the process's objects."""

_PATHS = sysconfig.get_paths()
_STANDARD = tuple(f"{_PATHS[name]}{os.sep}" for name in ("stdlib", "platstdlib"))
_SITE = (*(f"{_PATHS[name]}{os.sep}" for name in ("purelib", "platlib")),
         f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")  # fmt: skip
_OWN = f"{Path(__file__).resolve().parents[1]}{os.sep}"

_BOOKKEEPING = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
        "__annotate__", "__annotate_func__", "__annotations_cache__", "__firstlineno__",
        "__static_attributes__", "__abstractmethods__", "_abc_impl", "__orig_bases__",
        "__parameters__", "__type_params__", "__classcell__",
    }
)  # fmt: skip
"""What Python keeps in a class for itself."""


class Unknown(Exception):
    """Nobody can say what the reference depends on; the message says why."""


def is_installed(file: str | None) -> bool:
    """Whether code of this file belongs to a package, to Python or to this one."""
    if not file or file.startswith("<frozen"):
        return True
    return file.startswith((*_STANDARD, _OWN)) or any(place in file for place in _SITE)


def file_of(name: str) -> str | None:
    """The file of a loaded module; one that is typed in, as in a notebook, has none."""
    module = sys.modules.get(name)
    if module is None or (name == "__main__" and not hasattr(module, "__file__")):
        return TYPED_IN
    return getattr(module, "__file__", None)


def package_of(name: str) -> str:
    """What changes when somebody installs or edits the package that a module is of."""
    top = name.partition(".")[0]
    file = file_of(top)
    if file is None or file.startswith(_OWN) or not any(place in file for place in _SITE):
        return top  # of Python or of this package, whose versions are known
    path = Path(file)
    place = path.parent if path.name.startswith("__init__.") else path
    return f"{top} {_version(top)} {_stamp(place)}"


_CODE = (".py", ".so", ".pyd", ".dylib", ".dll")

_stamps: dict[Path, str] = {}


def _stamp(place: Path) -> str:
    """The sizes and dates of code in a folder, or of a file; in one process it is looked at once:
    what is loaded does not change.
    """
    if place not in _stamps:
        files = [place] if place.is_file() else list(_code_in(place))
        stats = [(str(file), file.stat()) for file in sorted(files)]
        text = repr([(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats])
        _stamps[place] = hashlib.sha256(text.encode()).hexdigest()
    return _stamps[place]


def _code_in(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name.endswith(_CODE))


def _version(top: str) -> str:
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return ""


def globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values of the global names that a function refers to, and the modules that it imports.

    Raises:
        Unknown: it does what hides others.
    """
    for code in _nested(function.__code__):
        steps = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
        for number, one in enumerate(steps):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                name = str(one.argval)
                if name in function.__globals__:
                    yield name, function.__globals__[name]
                elif name in REFUSED:
                    raise Unknown(f"`{function.__qualname__}` calls {name}()")
                elif not hasattr(builtins, name):
                    yield name, None
            elif one.opname == "IMPORT_NAME":
                before = steps[max(number - 2, 0) : number]
                yield from _imported(str(one.argval), before, function.__globals__)


def _imported(
    name: str, before: Sequence[dis.Instruction], namespace: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What an import statement gives; its level and its names are loaded `before`."""
    if [one.opname in ("LOAD_CONST", "LOAD_SMALL_INT") for one in before] != [True, True]:
        raise Unknown(f"`import {name}` inside a function, in a form that is not known")
    level, names = (one.argval for one in before)
    statement = f"import {'.' * level}{name}"
    try:
        full = importlib.util.resolve_name("." * level + name, _package(namespace))
    except ImportError as error:
        raise Unknown(f"`{statement}` inside a function: {error}") from error
    module = sys.modules.get(full)
    if module is None:
        raise Unknown(f"`{statement}` inside a function, and it is not loaded yet")
    yield statement, module
    if not names:  # `import a.b` binds `a`
        yield f"import {full.partition('.')[0]}", sys.modules.get(full.partition(".")[0])
    for one in names or ():
        try:
            yield f"{statement}: {one}", getattr(module, one)
        except Exception as error:  # of a module that loads others when they are asked for
            inner = sys.modules.get(f"{full}.{one}")
            if inner is None:
                raise Unknown(f"`{statement}` inside a function has no {one} yet") from error
            yield f"{statement}: {one}", inner


def _package(namespace: Mapping[str, Any]) -> str:
    """What relative imports in code of these globals begin at."""
    found = namespace.get("__package__")
    if found is None:
        name = str(namespace.get("__name__", ""))
        found = name if "__path__" in namespace else name.rpartition(".")[0]
    return str(found)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def compiled(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, whatever file and line it stands in."""
    consts = [compiled(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    return (
        code.co_code,
        tuple(consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        getattr(code, "co_exceptiontable", b""),
    )


def foreign(values: Mapping[str, Any]) -> dict[str, Any]:
    """The functions among these that are no part of an installed package.

    In a module or a class of one they are what somebody has put in the place of its own.
    """
    found = {}
    for name, value in values.items():
        bound = isinstance(value, (staticmethod, classmethod, MethodType))
        function = value.__func__ if bound else value
        if isinstance(function, FunctionType) and not is_installed(function.__code__.co_filename):
            found[name] = value
    return found


def members(cls: type) -> dict[str, Any]:
    """What a class defines itself."""
    return {name: value for name, value in vars(cls).items() if name not in _BOOKKEEPING}
