"""The port that runs: recorded, then run again on the reference's values."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
from flax import nnx

from parity.capture import layout as layout_rules
from parity.capture import nnx as capture_nnx
from parity.capture.functional import Functional
from parity.capture.recorder import Subtree
from parity.capture.tapped import record_with_taps
from parity.core.calls import Trace
from parity.core.exceptions import InputError
from parity.core.globs import renamed
from parity.core.pair import Case
from parity.core.tree import flatten
from parity.host import memory
from parity.options.options import Options
from parity.options.scope import Scope
from parity.run.inputs import check_inputs
from parity.run.judge import judge_forced
from parity.run.pairing import Pairing, pair
from parity.run.protocols import Arguments, Context, Reference
from parity.run.records import Compared, Judged

NO_TAPS = (
    "the port is a function without taps, seen as a whole: name what the reference's modules"
    " return, as in parity.tap('layers.0.attn', y)"
)


class RunningPort:
    """An NNX module as the port of a comparison.

    `args` and `kwargs` replace the reference's arguments after layout. In a process of its own,
    compiled programs are dropped before the root is called with other shapes than the last time:
    they will hardly run again, and hold memory until the process ends.
    """

    inlines = True

    def __init__(
        self,
        root: nnx.Module,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        own_process: bool = False,
    ) -> None:
        self.root = root
        self._args, self._kwargs, self._own_process = args, kwargs, own_process
        self._shapes: list[tuple[int, ...]] = []

    def paths(self) -> Collection[str]:
        """All modules of the root."""
        return capture_nnx.submodules(self.root).keys()

    def pair(self, reference: Reference, options: Options) -> Pairing:
        """The modules and tensors that correspond to the reference's."""
        return pair(reference.modules(), reference.tensors(), self.root, options)

    def called(self, case: Case, rename: Mapping[str, str]) -> nnx.Module:
        """The module that the case calls."""
        if not case.path:
            return self.root
        path = renamed(case.path, rename)
        found = capture_nnx.submodules(self.root).get(path)
        if found is None:
            raise InputError(
                f"the port has no module {path!r}, counterpart of {case.path!r}; use rename="
            )
        return found

    def record(self, context: Context, scope: Scope, ref: Trace, given: Arguments) -> Trace:
        """The calls of the case on the arguments `given`, or on those of the caller."""
        case, rename = context.case, context.options.rename or {}
        module = self.called(case, rename)
        if context.options.only and isinstance(module, Functional):
            raise InputError("only: a port that is a function runs as a whole; leave it out")
        self._drop_programs(case, [array.shape for _, array in flatten(given).arrays])
        run = partial(
            capture_nnx.record,
            module,
            case.nnx,
            given[0] if self._args is None else self._args,
            given[1] if self._kwargs is None else self._kwargs,
            store=context.store,
            subtree=Subtree(renamed(case.path, rename), scope.port),
        )
        with layout_rules.hint(ref.calls[-1]) if self._args is None else nullcontext():
            trace = record_with_taps(run, module, ref, rename)
        check_inputs(ref.calls[-1], trace.calls[-1], context.store)
        return trace

    def judge(self, context: Context, compared: Compared) -> Judged:
        """Judged rows, by running each side with the other's values."""
        module = self.called(context.case, context.options.rename or {})
        return judge_forced(context, compared, module)

    def notes(self, trace: Trace) -> tuple[str, ...]:
        """What a function without taps leaves unseen."""
        tapped = any(call.tapped for call in trace.calls)
        return (NO_TAPS,) if isinstance(self.root, Functional) and not tapped else ()

    def _drop_programs(self, case: Case, shapes: list[tuple[int, ...]]) -> None:
        if self._own_process and not case.path and shapes != self._shapes:
            jax.clear_caches()
            memory.give_back()
            self._shapes = shapes
