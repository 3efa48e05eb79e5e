"""Records that describe a pair of models: options, cases, rungs, known mistakes."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.core.exceptions import InputError, shown
from parity.core.globs import rooted
from parity.core.tensors import Fused, Stacked


@dataclass(frozen=True)
class Case:
    """One run of both sides on shared inputs.

    `name` is method/input. `args` are NumPy arrays, channel-first; `args_from` makes them instead
    from what the reference returned in the cases before, by case and leaf. `path` is the module
    that is called (`""`: the root). `torch` and `nnx` are method names or callables
    `(module, *args) -> nested arrays`. `depth` 0 records the called module alone. `floor` asks for
    R on every call rather than only where it is needed to decide; `r_limit` replaces the limits on
    R and on MAE: only the distance from float64 counts. `shipped` is what users of the port call
    instead of `nnx`, such as a compiled program: it must return the same. `returned_from`, at depth
    0, makes what the reference returns from what it returned before, where that is the same to the
    bit: it runs then only if the port does not agree with that. `seen(args, ref, port)` says in a
    line what a person would see of what both return, arrays by leaf in the layout of each side.
    `source` says where the inputs are from, for a report's line on its input.
    """

    name: str
    args: tuple[Any, ...] = ()
    args_from: Callable[[Mapping[str, Mapping[str, Any]]], tuple[Any, ...]] | None = None
    path: str = ""
    torch: str | Callable[..., Any] = "__call__"
    nnx: str | Callable[..., Any] = "__call__"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    depth: int | None = None
    floor: bool = False
    r_limit: float | None = None
    shipped: str | Callable[..., Any] | None = None
    returned_from: Callable[[Mapping[str, Mapping[str, Any]]], Any] | None = None
    seen: Callable[[tuple[Any, ...], Mapping[str, Any], Mapping[str, Any]], str] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.returned_from is not None and self.depth != 0:
            raise ValueError(f"{self.name}: returned_from shows no call inside; set depth to 0")


@dataclass(frozen=True)
class Rung:
    """A step of a ladder: which reference classes it holds, and its limit on MAE."""

    name: str
    kinds: tuple[str, ...]
    limit: float
    free: bool = False
    """True if the limit applies to the free-running error of these modules too."""

    def __post_init__(self) -> None:
        """Refuse a name that no file of its own can have: a report has a CSV for each rung."""
        if Path(self.name).name != self.name or self.name in ("layers", "weights"):
            raise InputError(f"rung {shown(self.name)}: expected a name for a file of its own")


PairOptions = Mapping[str, Any]
"""Values of a pair's options, by name."""


@dataclass(frozen=True)
class Option:
    """An option of a pair: `--name` of the commands, and a key of what its functions are given.

    `parse` makes a value of text, or raises `ValueError` with what it expected. A default that is
    text is parsed too.
    """

    name: str
    help: str
    default: Any = None
    parse: Callable[[str], Any] = str
    metavar: str = "TEXT"

    def value(self, given: Any) -> Any:
        """Return the value of what is given: of text, what it says.

        Raises:
            InputError: the text is none of this option.
        """
        try:
            return self.parse(given) if isinstance(given, str) else given
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from error


@dataclass(frozen=True)
class Mistake:
    """A known porting mistake, for the harness to be tried on.

    `sites(modules)` lists where in the port, by path, it can be made. `plant(modules, path, draw)`
    makes it there for the time of a `with` statement, which gets the paths that are wrong then.
    `causes` are the words that name it rightly. `cases` is a glob of the cases that would show it.
    `files` are where its code is, if it is one of code.
    """

    name: str
    causes: tuple[str, ...]
    sites: Callable[[Mapping[str, Any]], Sequence[str]]
    plant: Callable[
        [Mapping[str, Any], str, random.Random], AbstractContextManager[tuple[str, ...]]
    ]
    cases: str = "*"
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offline:
    """Maker of a pair's port where torch is not installed, for `parity check`.

    `settings(torch_module)` are plain values, as JSON has them, from which `make_nnx(settings,
    tensors)` makes the port; `tensors` maps the names of the reference's `state_dict()` to NumPy
    arrays, each read when it is asked for. `methods` are the functions, and the names of methods,
    that the pair's cases call on the port besides `__call__`, and `words` the strings that they
    pass: a golden trace names nothing else. Loading the pair must not import torch then.
    """

    settings: Callable[[Any], Mapping[str, Any]]
    make_nnx: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    methods: tuple[str | Callable[..., Any], ...] = ()
    words: tuple[str | bytes, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A PyTorch model and its port, as an entry point of the group `parity.pairs` names them.

    `options` are the pair's own. Its functions get a mapping of all of them to values, and may
    raise `InputError`. `make_torch(options, seed)` makes the reference and
    `make_nnx(options, torch_module)` the port with the same weights;
    `cases(torch_module, options, seed)` makes the inputs. `declared` maps globs of `path` or
    `path#leaf` that have no counterpart to the reason; `rename` maps globs of reference paths to
    paths of the port; `layout` maps globs to `"channels_first"` or `"as_is"`; `fused` says which
    tensors the port holds in another number of arrays. `unexercised(torch_module, cases)` says in
    short sentences what these inputs leave out that only who knows the model can tell. `mistakes`
    are known ones of this port, for `parity selftest`, which takes the values of `selftest` for
    defaults: it compares hundreds of times. `offline` is what `parity record` and `parity check`
    need. `prepare(options, seed)` refuses options that do not go together, and imports what the
    reference needs, where the pair can be loaded without: what that takes is no memory of a run.
    `facts(options, seed)` says by name what a report states of
    what was compared, such as `weights` and `config`.
    """

    name: str
    make_torch: Callable[[PairOptions, int], Any]
    make_nnx: Callable[[PairOptions, Any], Any]
    cases: Callable[[Any, PairOptions, int], Sequence[Case]]
    rungs: tuple[Rung, ...] = ()
    options: tuple[Option, ...] = ()
    declared: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[Fused | Stacked, ...] = ()
    unexercised: Callable[[Any, Sequence[Case]], Sequence[str]] = lambda torch_module, cases: ()
    mistakes: tuple[Mistake, ...] = ()
    selftest: PairOptions = field(default_factory=dict)
    offline: Offline | None = None
    prepare: Callable[[PairOptions, int], object] = lambda options, seed: None
    facts: Callable[[PairOptions, int], Mapping[str, str]] = lambda options, seed: {}

    def __post_init__(self) -> None:
        """Take the root by the name that reports give it."""
        for name in ("declared", "rename", "layout"):
            object.__setattr__(self, name, rooted(getattr(self, name)))

    def resolved(self, given: PairOptions | None = None) -> PairOptions:
        """Return a value of every option: the one given, or its default.

        Raises:
            InputError: there is no such option, or a text is none of its values.
        """
        given = given or {}
        known = [option.name for option in self.options]
        for name in given:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise InputError(f"pair {self.name}: no option {name!r}; it has {listed}")
        return {one.name: one.value(given.get(one.name, one.default)) for one in self.options}
