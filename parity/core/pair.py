"""Records that describe a pair of models: cases, rungs, known mistakes."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

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
    bit: it runs then only if the port does not agree with that. `seen(args, theirs, ours)` says in
    a line what a person would see of what both return, arrays by leaf in the layout of each side.
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
    """Whether the limit applies to the free-running error of these modules too."""


@dataclass(frozen=True)
class Clip:
    """Video that both sides get: float32 in [-1, 1], channel-first, and where it is from."""

    frames: Float[np.ndarray, "1 3 t h w"]
    source: str


@dataclass(frozen=True)
class Mistake:
    """A known porting mistake, for the harness to be tried on.

    `sites(modules)` lists where in the port, by path, it can be made. `plant(modules, path, draw)`
    makes it there for the time of a `with` statement, which gets the paths that are wrong then.
    `causes` are the words that name it rightly. `cases` is a glob of the cases that would show it.
    """

    name: str
    causes: tuple[str, ...]
    sites: Callable[[Mapping[str, Any]], Sequence[str]]
    plant: Callable[
        [Mapping[str, Any], str, random.Random], AbstractContextManager[tuple[str, ...]]
    ]
    cases: str = "*"


@dataclass(frozen=True)
class Offline:
    """What a pair says so that its port can be checked where torch is not installed.

    `settings(torch_module)` are plain values, as JSON has them, from which `make_nnx(settings,
    tensors)` makes the port; `tensors` maps the names of the reference's `state_dict()` to NumPy
    arrays, each read when it is asked for. `methods` are the functions that the pair's cases call
    on the port: a golden trace holds their names. Loading the pair must not import torch then.
    """

    settings: Callable[[Any], Mapping[str, Any]]
    make_nnx: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    methods: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True)
class Pair:
    """A PyTorch model and its port, as an entry point of the group `parity.pairs` names them.

    `make_torch(weights, config, seed)` makes the reference, and
    `make_nnx(weights, config, torch_module)` the port with the same weights (`torch_module` is
    `None` where `weights` has them); both may raise `InputError`. `cases(torch_module, clip, seed)`
    makes the inputs. `declared` maps globs of `path` or `path#leaf` that have no counterpart to the
    reason; `rename` maps globs of reference paths to paths of the port; `layout` maps globs to
    `"channels_first"` or `"as_is"`; `fused` says which tensors the port holds in another number of
    arrays. `unexercised(torch_module, cases)` says in short sentences what these inputs leave out
    that only who knows the model can tell. `mistakes` are known ones of this port, for `parity
    selftest`; `offline` is what `parity record` and `parity check` need. `prepare` imports what the
    reference needs, where the pair can be loaded without: what that takes is no memory of a run.
    `facts(clip, weights, config, seed)` says by name what a report states of `input`, `weights` and
    `config`, where only the pair knows what it makes of these arguments.
    """

    name: str
    make_torch: Callable[[str | None, str | None, int], Any]
    make_nnx: Callable[[str | None, str | None, Any], Any]
    cases: Callable[[Any, Clip, int], tuple[Case, ...]]
    rungs: tuple[Rung, ...]
    declared: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[Fused | Stacked, ...] = ()
    unexercised: Callable[[Any, Sequence[Case]], Sequence[str]] = lambda torch_module, cases: ()
    mistakes: tuple[Mistake, ...] = ()
    offline: Offline | None = None
    prepare: Callable[[], object] = lambda: None
    facts: Callable[[Clip, str | None, str | None, int], Mapping[str, str]] = (
        lambda clip, weights, config, seed: {}
    )

    def __post_init__(self) -> None:
        """Take the root by the name that reports give it."""
        for name in ("declared", "rename", "layout"):
            object.__setattr__(self, name, rooted(getattr(self, name)))
