"""The frozen records that the stages hand to one another."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from parity.globs import rooted
from parity.portrait import Portrait
from parity.store import Buffer
from parity.tree import Skeleton
from parity.weights import Fused, Stacked

Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]


@dataclass(frozen=True)
class Leaf:
    """One leaf of a call's arguments or outputs.

    `buffer` is set for arrays, `value` for everything else. `moved` says that the channel axis
    of a PyTorch array was moved from 1 to last when it was recorded, `sure` that its kind or a
    declaration decided so.
    """

    name: str
    buffer: Buffer | None = None
    value: Any = None
    moved: bool = False
    sure: bool = True


@dataclass(frozen=True)
class Call:
    """One call of one module.

    `number` counts the calls of this module, `order` the calls of the run by completion,
    `parent` is the `order` of the enclosing call (-1 for the root). `traced` says that the port
    ran it under a JAX transformation. `arguments` rebuilds the arguments, `returned` what the
    reference returned. `in_place` says that the reference wrote to an argument.
    """

    path: str
    kind: str
    method: str
    number: int
    order: int
    parent: int
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    traced: bool = False
    arguments: Skeleton | None = None
    returned: Skeleton | None = None
    in_place: bool = False

    @property
    def tapped(self) -> bool:
        """Whether it is a tap and no call: then nothing was called, and it has no inputs."""
        return not self.method


@dataclass(frozen=True)
class ModuleInfo:
    """A module of either side: its class, whether it can run, its own tensors' sizes by name."""

    path: str
    kind: str
    container: bool
    parameters: Mapping[str, int]
    buffers: Mapping[str, int]


@dataclass(frozen=True)
class Trace:
    """Everything recorded in one run of one side, calls in the order of completion.

    `hidden` are the modules that the port calls under `jax.vmap`, where calls cannot be recorded.
    `linen` are the port's modules of Linen by path, as they can be called again. `untapped` are the
    paths of the port's taps under any transformation, compilation among them.
    """

    calls: tuple[Call, ...]
    modules: Mapping[str, ModuleInfo]
    hidden: frozenset[str] = frozenset()
    linen: Mapping[str, Any] = field(default_factory=dict)
    untapped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Metrics:
    """Distance of a port's array from the reference's, in float64.

    `nonfinite` counts the entries that are NaN or infinite on one side only, or differently.
    """

    mae: float
    mse: float
    max_abs: float
    rel_mae: float
    rel_l2: float
    rel_linf: float
    p999: float
    ulp_p99: float
    cosine: float
    ref_rms: float
    worst_index: tuple[int, ...]
    nonfinite: int


@dataclass(frozen=True)
class Inclusive:
    """Error of a subtree fed with the reference's inputs.

    R is measured where it matters for a verdict; `bounded` says that `rel_l2` alone bounds it
    under a few times its limit (see `attribute.SLACK`).
    """

    mae: float
    rel_l2: float
    nonfinite: int
    floor_rel_l2: float = float("nan")
    r: float = float("nan")
    problem: str = ""
    bounded: bool = False


UNSTEADY = 0.05
"""Relative distance of the reference from its own float64 run above which it is no reference."""


@dataclass(frozen=True)
class Exclusive:
    """Error of a module's own code: fed with the reference's inputs, and the calls inside it
    return the reference's outputs.

    `floor_rel_l2` is the reference's own relative distance from float64, R the port's in units of
    it (see `noise`). `moved` says that the reference only moves data here, without any rounding,
    and `part` which channel is wrong that the figures of the whole do not show (see `parts`).
    """

    mae: float
    rel_l2: float
    nonfinite: int
    floor_rel_l2: float = float("nan")
    r: float = float("nan")
    problem: str = ""
    bounded: bool = False
    moved: bool = False
    part: str = ""

    @property
    def unsteady(self) -> bool:
        """Whether the reference differs from its own float64 run by more than any rounding can."""
        return self.floor_rel_l2 > UNSTEADY and self.mae > 0

    def fails(self, limit: float) -> bool:
        """Whether this is more than rounding: R beyond `limit`, or data moved and changed."""
        return (
            self.r > limit
            or self.nonfinite > 0
            or self.problem.startswith("shape")
            or (self.moved and self.mae > 0)
        )


@dataclass(frozen=True)
class Handed:
    """An input that a container hands to a call inside it otherwise than the reference does.

    `parent` and `child` are the `order` of the two calls, `after` is the path of the call inside
    the parent that came before the child, if any.
    """

    parent: int
    child: int
    path: str
    leaf: str
    after: str
    error: Exclusive


@dataclass(frozen=True)
class LeafMatch:
    """A leaf of the reference and the port's leaf that corresponds to it.

    `undo` says that the reference's array is to be read in its own layout after all. `problem`
    is why the two cannot be compared (`""` if they can), `declared` why they need not be.
    """

    ref: Leaf
    port: Leaf | None
    undo: bool = False
    problem: str = ""
    declared: str = ""


@dataclass(frozen=True)
class Match:
    """A reference call, the port's call that corresponds to it, and their leaves."""

    ref: Call
    port: Call
    inputs: tuple[LeafMatch, ...]
    outputs: tuple[LeafMatch, ...]
    parent: int
    """The `order` of the nearest enclosing reference call that is matched, -1 for the root."""


@dataclass(frozen=True)
class Coverage:
    """What was compared. `declared` maps what need not match to the reason.

    Tensors are counted from the ledger of weights. `suggestions` says of unmatched modules what
    they may be in the port.
    """

    modules: int
    matched: tuple[str, ...]
    declared: Mapping[str, str]
    unmatched: tuple[str, ...]
    dissolved: Mapping[str, str]
    calls: int
    matched_calls: int
    parameters: int = 0
    matched_parameters: int = 0
    buffers: int = 0
    matched_buffers: int = 0
    unmatched_calls: tuple[str, ...] = ()
    unmatched_tensors: tuple[str, ...] = ()
    suggestions: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether something was compared, and nothing is missing that was not declared."""
        return bool(self.matched) and not (
            self.unmatched or self.unmatched_calls or self.unmatched_tensors
        )


GRADIENTS = "/grad"
"""What the case of a row or fault of gradients ends with."""


def of_gradient(case: str, leaf: str) -> bool:
    """Whether a row or fault is one of gradients: a case may be of an input named `grad`."""
    return case.endswith(GRADIENTS) and leaf.startswith("grad(")


@dataclass(frozen=True)
class Row:
    """One line of the table: an output leaf of a matched call, or a gradient of it."""

    rung: str
    case: str
    path: str
    nnx_path: str
    kind: str
    call: int
    leaf: str
    shape: tuple[int, ...]
    dtype: str
    metrics: Metrics | None
    inclusive: Inclusive | None
    exclusive: Exclusive | None
    gain: float
    grade: str
    verdict: Verdict
    reason: str
    order: int
    parent: int
    limited: bool = True
    """Whether limits on MAE apply: they do not to inputs of a large mean, nor to gradients, whose
    size says nothing."""
    one_sided: bool = False
    """Whether only one side returns this leaf."""
    handed: float = 0.0
    """The largest relative error of what the call hands to those inside it out of its limit."""

    @property
    def own(self) -> float:
        """Relative L2 error of the call's own code, in what it returns or hands on; NaN if that
        was not measured.
        """
        returned = math.nan if self.exclusive is None else self.exclusive.rel_l2
        if not self.handed:
            return returned
        return self.handed if math.isnan(returned) else max(returned, self.handed)


@dataclass(frozen=True)
class Fault:
    """A call whose own code goes wrong, whatever happens around and inside it.

    `segment` says between which two calls inside it, `""` if it makes none. `cause` is a word of
    the closed vocabulary (see `diagnose`), `evidence` what was measured, `hint` what to do.
    `portrait` is `None` where the arrays have different shapes, and for all but the first faults of
    a report.
    """

    path: str
    call: int
    leaf: str
    case: str
    kind: str
    evidence: str
    segment: str = ""
    cause: str = ""
    hint: str = ""
    calls: int = 1
    """How many calls of this module fail so."""
    portrait: Portrait | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Why a call goes wrong: a word of the closed vocabulary, what was measured, what to do."""

    cause: str
    evidence: str
    hint: str


@dataclass(frozen=True)
class Loss:
    """What rounded products cost one call of the port that is given the reference's inputs.

    `rel_l2` is the relative distance from what the same code makes of them without emulation: of
    output `leaf`, or, where `to` is the path of a call inside, of that argument of it.
    """

    path: str
    kind: str
    call: int
    leaf: str
    to: str
    rel_l2: float


@dataclass(frozen=True)
class Emulation:
    """One case on emulated hardware (see `emulate`).

    `outputs` maps each output leaf to the relative L2 distance that the emulation adds, and to
    that of the port itself from the reference, both free-running. `lossy` of the `calls` that were
    repeated differ from float32 by more than its rounding; `losses` are theirs, the worst first.
    """

    mode: str
    case: str
    path: str
    outputs: Mapping[str, tuple[float, float]]
    losses: tuple[Loss, ...]
    lossy: int
    calls: int


@dataclass(frozen=True)
class NonFinite:
    """The first call of one side whose output leaves the finite numbers.

    `nan` and `inf` count the entries of output `leaf`, of `size`. `largest` is the largest finite
    magnitude among its inputs, `given` how many entries of these were not finite already. `alike`
    says that the other side has the same entries.
    """

    side: Literal["reference", "port"]
    case: str
    path: str
    kind: str
    call: int
    leaf: str
    nan: int
    inf: int
    size: int
    largest: float
    given: int
    alike: bool


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
    `"move"` or `"keep"`; `weights` says which tensors the port holds in another number of arrays.
    `unexercised(torch_module, cases)` says in short sentences what these inputs leave out that only
    who knows the model can tell. `mistakes` are known ones of this port, for `parity selftest`;
    `offline` is what `parity record` and `parity check` need. `prepare` imports what the reference
    needs, where the pair can be loaded without: what that takes is no memory of a run.
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
    weights: tuple[Fused | Stacked, ...] = ()
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
