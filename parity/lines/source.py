"""Frames of a stack cut to the user's code, and the source lines that they stand for."""

import functools
import inspect
import itertools
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from parity.core.lines import MOST, SourceLine

LIBRARIES = frozenset(
    {
        *("jax", "jaxlib", "flax", "torch", "numpy", "parity", "optax", "orbax", "chex"),
        *("equinox", "haiku", "jaxtyping", "beartype", "einops", "opt_einsum", "torchvision"),
    }
)
"""Packages whose own lines say nothing to a porter."""

OWN = Path(__file__).parents[1]

MISTAKES = OWN / "selftest/mistakes.py"
"""What stands there is tried in the place of a user's code."""

AROUND = 2
"""Lines shown before and after one."""


@dataclass(frozen=True)
class Frame:
    """A place on a stack: file, line, and the qualified name of the function."""

    file: str
    line: int
    function: str


Frames = tuple[Frame, ...]
"""A stack from the innermost frame outwards."""


@functools.cache
def of_library(file: str) -> bool:
    """True for a file of a framework, of Python itself, of this package, and for what is none."""
    if file.startswith("<"):
        return True
    path = Path(file)
    parts = path.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            package = parts[len(parts) - parts[::-1].index(folder)]
            return package.removesuffix(".py") in LIBRARIES
    if OWN in path.parents:
        return path != MISTAKES
    return Path(sysconfig.get_paths()["stdlib"]) in path.parents


def stack(base: FrameType, skip: int = 1) -> Frames:
    """The frames of the caller, without `skip` of them, up to `base`, which is left out."""
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe(skip)
    while frame is not None and frame is not base:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return tuple(found)


def defined(function: Callable[..., object]) -> Frames:
    """Where a function is defined; nowhere, if it is not of Python."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ()
    return (Frame(code.co_filename, code.co_firstlineno, code.co_qualname),)


def runs_in(frames: Frames, functions: Iterable[Callable[..., object]]) -> bool:
    """True if a stack goes through one of these functions, or what they decorate."""
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
    return any(
        (frame.file, frame.function) == (code.co_filename, code.co_qualname)
        and any(frame.line == line for *_, line in code.co_lines())  # several may be <lambda>
        for code in codes
        if code is not None
        for frame in frames
    )


def users(frames: Frames) -> tuple[Frame | None, str]:
    """The deepest frame of the user's code, and the name of the library's function it calls."""
    called = ""
    for frame in frames:
        if not of_library(frame.file):
            return frame, called
        if not _private(frame.function) and OWN not in Path(frame.file).parents:
            called = frame.function
    return None, called


def _private(name: str) -> bool:
    """True for functions that no user calls by name."""
    owner, _, own = name.removesuffix(".__call__").removesuffix(".forward").rpartition(".")
    machinery = owner.startswith(("Primitive", "Dynamic", "ufunc")) or own in (
        "current",
        "rewriting_take",
    )
    return machinery or own.startswith("_") or "<" in name


def source_lines(
    found: Iterable[tuple[Frames, str]], most: int | None = MOST
) -> tuple[SourceLine, ...]:
    """The first lines of the user's code among stacks, each with what is done there."""
    lines: dict[tuple[str, int], SourceLine] = {}
    for frames, operation in found:
        frame, called = users(frames)
        if frame is not None and (frame.file, frame.line) not in lines:
            lines[frame.file, frame.line] = _line(frame, _named(operation, called))
    return tuple(itertools.islice(lines.values(), most))


def callers(found: Iterable[tuple[Frames, str]]) -> tuple[SourceLine, ...]:
    """Where the user's code of another file calls that of the first of `source_lines`."""
    for frames, _ in found:
        helper, _ = users(frames)
        if helper is not None:
            own = [frame for frame in frames if not of_library(frame.file)]
            outer = next((at for at, one in enumerate(own) if one.file != helper.file), None)
            if outer is None:
                return ()
            return (_line(own[outer], f"call of {own[outer - 1].function.rpartition('.')[2]}"),)
    return ()


def _named(operation: str, called: str) -> str:
    """The operation, and the library's function that the line calls for it."""
    short = called.removesuffix(".__call__").removesuffix(".forward").rpartition(".")[2]
    return f"{operation} in {short}" if short and short not in operation else operation


def _line(frame: Frame, operation: str) -> SourceLine:
    linecache.checkcache(frame.file)
    before = _texts(frame.file, range(frame.line - AROUND, frame.line))
    after = _texts(frame.file, range(frame.line + 1, frame.line + 1 + AROUND))
    text = linecache.getline(frame.file, frame.line).rstrip()
    return SourceLine(relative(frame.file), frame.line, text, operation, before, after)


def _texts(file: str, numbers: Sequence[int]) -> tuple[str, ...]:
    texts = linecache.getlines(file)
    return tuple(texts[n - 1].rstrip() for n in numbers if 0 < n <= len(texts))


def relative(file: str) -> str:
    """The path from the working directory, unless it leads out of it."""
    path = os.path.relpath(file)
    return file if path.startswith(os.pardir) else path
