"""What a hostile case is, and how one is run: in this process, with everything it does watched.

A case makes its input in a folder of its own, uses it through a command or a call, and says how
that must end. The harness adds what holds for all of them: one line, no traceback, no file but in
`out`, no temporary file left, nothing unpickled, no more memory than the limit.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flax import nnx

import parity
from jaxvae.io.diffusers_folder import WeightsError
from jaxvae.io.video import VideoError
from jaxvae.models.config import ConfigError
from parity.capture.hooks_nnx import STAMP
from parity.core.exceptions import InputError
from tests.commands import here

MEMORY = 256 << 20
"""Bytes that the peak of the process may rise above what it held before a case."""

LONGEST = 1000
"""Characters of a message that can still be read."""

REFUSALS = (InputError, WeightsError, ConfigError, VideoError)

Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Compared:
    """A comparison to make: both modules, and the other arguments of `parity.compare`."""

    torch_module: Any
    nnx_module: Any
    options: dict[str, Any]

    def report(self) -> parity.Report:
        """Make the comparison."""
        return parity.compare(self.torch_module, self.nnx_module, **self.options)


@dataclass(frozen=True)
class Case:
    """One hostile input.

    `make` writes it into the folder, beside copies of `needs`. It is used by a command (`words`),
    by a call with the folder (`call`), or by the comparison that `compared` makes. `wanted` is how
    that ends: an exit code, a verdict, or the class of an error that the user's own module raises.
    `says` are parts of the one line.
    """

    kind: str
    name: str
    make: Spoil = lambda home: None
    words: tuple[str, ...] = ()
    call: Callable[[Path], Any] | None = None
    compared: Callable[[], Compared] | None = None
    wanted: int | str | type[BaseException] = 2
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a case ended, and what of it was not as it must be."""

    case: Case
    ended: int | str | type[BaseException]
    line: str
    problems: tuple[str, ...]


@dataclass
class _Watch:
    """What the interpreter did while a case ran, as its audit events tell."""

    on: bool = False
    unpickled: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "pickle.find_class":
            self.unpickled.append(".".join(map(str, args)))
        elif event == "open" and isinstance(args[0], (str, bytes)):
            mode, flags = args[1], args[2] or 0
            writes = flags & (os.O_WRONLY | os.O_RDWR) or any(c in str(mode) for c in "wax+")
            if writes:
                self.written.append(os.fsdecode(args[0]))
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate"):
            self.written.append(os.fsdecode(args[0]))
        elif event in ("os.rename", "os.link", "os.symlink"):
            self.written.extend(map(os.fsdecode, args[:2]))


_WATCH = _Watch()
sys.addaudithook(_WATCH.hear)


def run(case: Case, stock: Path, folder: Path) -> Outcome:
    """Run a case in the new folder `folder`; `stock` has what cases need copies of."""
    home, scratch = folder / "home", folder / "scratch"
    home.mkdir(parents=True)
    scratch.mkdir()
    (folder / "beside").mkdir()
    (folder / "beside" / "kept.txt").write_text("kept")
    for name in case.needs:
        copy = shutil.copytree if (stock / name).is_dir() else shutil.copy
        copy(stock / name, home / name)
    case.make(home)
    before = _tree(folder)
    peak = _reset_peak()
    with _inside(home, scratch), _watched() as watch:
        ended, line, problems = _use(case, home)
    risen = _peak() - peak
    if risen > MEMORY:
        problems.append(f"memory rose by {risen >> 20} MiB")
    if watch.unpickled:
        problems.append(f"unpickled {watch.unpickled[0]}")
    allowed = (folder, Path(os.environ["JAX_COMPILATION_CACHE_DIR"]), Path("/dev"))
    for name in watch.written:  # in the folder its files tell
        path = Path(home, name).resolve()
        if not any(path.is_relative_to(place.resolve()) for place in allowed):
            problems.append(f"wrote {path}")
    if list(scratch.iterdir()):
        problems.append(f"left {next(scratch.iterdir()).name} among temporary files")
    after = _tree(folder)
    problems += [f"changed {name}" for name in sorted(before.keys() | after.keys())
                 if before.get(name) != after.get(name)]  # fmt: skip
    shutil.rmtree(folder)
    return Outcome(case, ended, line, tuple(problems))


def _use(case: Case, home: Path) -> tuple[Any, str, list[str]]:
    ended: Any
    compared = case.compared() if case.compared else None
    text = ""
    hooks = hooks_of(compared)
    try:
        if case.words:
            done = here(*case.words)
            ended, text = done.returncode, done.stderr
        elif compared is not None:
            report = compared.report()
            ended, text = (
                report.verdict,
                "\n".join((*report.notes, *map(str, report.doubts), *map(str, report.faults))),
            )
        else:
            assert case.call is not None
            case.call(home)
            ended = 0
    except REFUSALS as error:
        ended, text = 2, str(error)
    except Exception as error:
        ended, text = type(error), str(error)
    problems = []
    if ended != case.wanted:
        wanted = getattr(case.wanted, "__name__", case.wanted)
        problems.append(
            f"ended with {getattr(ended, '__name__', ended)}, not {wanted}: {text[-400:]}"
        )
    elif ended == 2:
        problems += _message_problems(text, case.says)
    else:
        problems += [
            f"does not say {part!r}: {text[-400:]}" for part in case.says if part not in text
        ]
    if compared is not None:
        problems += left_behind(compared, hooks)
    return ended, text.strip().splitlines()[-1] if text.strip() else "", problems


def _message_problems(text: str, says: tuple[str, ...]) -> list[str]:
    """What is wrong with a refusal: it is one line that can be read and says what it must."""
    if "Traceback" in text:
        return [f"a traceback: {text[-400:]}"]
    text = text.removesuffix("\n")
    if text.startswith("Usage: "):  # click's own lines on how the command is used
        text = text.partition("\n\n")[2]
    problems = []
    if not text.strip() or len(text.splitlines()) != 1:
        problems.append(f"not one line: {text[-400:]!r}")
    if not text.isprintable():
        problems.append(f"characters that a terminal obeys: {text[-400:]!r}")
    if len(text) > LONGEST:
        problems.append(f"{len(text)} characters: {text[:200]!r}...")
    problems += [f"does not say {part!r}: {text[:400]!r}" for part in says if part not in text]
    return problems


def hooks_of(compared: Compared | None) -> dict[str, set[int]]:
    """The hooks of each module of the reference, by path."""
    module = compared.torch_module if compared else None
    named = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    return {path: {*one._forward_hooks, *one._forward_pre_hooks} for path, one in named}


def left_behind(compared: Compared, before: dict[str, set[int]]) -> list[str]:
    """Hooks, stamps and wrapped classes that a comparison left behind."""
    now = hooks_of(compared)
    problems = [f"left a hook on {path!r}" for path in now if now[path] - before[path]]
    if isinstance(compared.nnx_module, nnx.Module):
        for path, module in nnx.iter_modules(compared.nnx_module):
            if STAMP in vars(module):
                problems.append(f"left a stamp on {path}")
            call = type(module).__call__ if callable(module) else None
            if hasattr(call, "__wrapped__"):
                problems.append(f"left {type(module).__name__}.__call__ wrapped")
    return problems


@contextlib.contextmanager
def _watched() -> Iterator[_Watch]:
    _WATCH.unpickled.clear()
    _WATCH.written.clear()
    _WATCH.on = True
    try:
        yield _WATCH
    finally:
        _WATCH.on = False


@contextlib.contextmanager
def _inside(home: Path, scratch: Path) -> Iterator[None]:
    before, place = Path.cwd(), tempfile.tempdir
    os.chdir(home)
    tempfile.tempdir = str(scratch)
    try:
        yield
    finally:
        os.chdir(before)
        tempfile.tempdir = place


def _tree(folder: Path) -> dict[str, Any]:
    """Every file but those in `out`, with its size and time of change."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not (name + "/").startswith(("home/out/", "scratch/")) and "__pycache__" not in name:
            about = path.lstat()
            found[name] = "folder" if path.is_dir() else (about.st_size, about.st_mtime_ns)
    return found


def _reset_peak() -> int:
    """What the process holds now, from where on its peak is counted."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    from parity.host.memory import peak_memory

    return peak_memory()
