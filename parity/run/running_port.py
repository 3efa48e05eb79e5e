"""The port that runs: recorded, then run again on the reference's values."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from flax import nnx

from parity.capture import layout as layout_rules
from parity.capture import nnx as capture_nnx
from parity.capture import taps
from parity.capture.functional import Functional
from parity.capture.recorder import Subtree
from parity.core.calls import Trace
from parity.core.exceptions import InputError, first_line
from parity.core.globs import captured, renamed
from parity.diagnose.case_record import CaseRecord
from parity.host.programs import Programs
from parity.options.options import Options
from parity.options.scope import Scope
from parity.run.inputs import check_inputs, returns_the_same
from parity.run.judge import judge_forced
from parity.run.pairing import pair
from parity.run.protocols import Arguments, Context, Reference
from parity.run.records import Compared, Pairing

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
        self._args, self._kwargs = args, kwargs
        self._programs = Programs(own_process)

    def paths(self) -> Collection[str]:
        """All modules of the root."""
        return capture_nnx.submodules(self.root).keys()

    def pair(self, reference: Reference, options: Options) -> Pairing:
        """The modules and tensors that correspond to the reference's."""
        return pair(reference, self.root, options)

    def prepare(self, context: Context, given: Arguments) -> None:
        """Drop programs that will hardly run again.

        Raises:
            InputError: the port lacks the called module, or a part of a function was asked for.
        """
        module = self._called(context)
        if context.options.only and isinstance(module, Functional):
            raise InputError("only: a port that is a function runs as a whole; leave it out")
        self._programs.before(context.case.path, given)

    def record(self, context: Context, scope: Scope, ref: Trace, given: Arguments) -> Trace:
        """The calls of the case on the arguments `given`, or on those of the caller."""
        if not scope.whole and len(ref.calls) == 1:
            return Trace((), {})  # the reference called nothing in the scope
        args = given[0] if self._args is None else self._args
        kwargs = given[1] if self._kwargs is None else self._kwargs
        try:
            trace = self._recorded(context, scope, ref, args, kwargs)
        except InputError:
            raise
        except Exception as error:
            other = layout_rules.as_recorded(given, ref.calls[-1])
            if self._args is None:
                layout_rules.add_hint(error, ref.calls[-1])
            if self._args is not None or context.options.layout or other is None:
                raise
            try:  # a port that takes images as the reference does
                trace = self._recorded(context, scope, ref, *other)
            except Exception as second:
                error.add_note(f"on arrays channel-first, as the reference: {first_line(second)}")
                raise error from None
        else:
            trace = self._in_other_layout(context, scope, ref, given, trace) or trace
        check_inputs(ref.calls[-1], trace.calls[-1], context.store)
        return trace

    def _in_other_layout(
        self, context: Context, scope: Scope, ref: Trace, given: Arguments, trace: Trace
    ) -> Trace | None:
        """The calls on arrays with the reference's axes, if neither shape nor kind tells the port's
        and it returns what the reference does only then.
        """
        other = layout_rules.as_recorded(given, ref.calls[-1], equal=True)
        if self._args is not None or context.options.layout or other is None:
            return None
        if returns_the_same(ref.calls[-1], trace.calls[-1], context.store):
            return None
        try:
            found = self._recorded(context, scope, ref, *other)
        except Exception:  # of the port's own code: it does not take them, so they are not its own
            return None
        same = returns_the_same(ref.calls[-1], found.calls[-1], context.store)
        return found if same else None

    def _recorded(
        self, context: Context, scope: Scope, ref: Trace, args: Any, kwargs: Any
    ) -> Trace:
        module, options = self._called(context), context.options
        subtree = Subtree(context.port_path, scope.port)
        run = partial(
            capture_nnx.record,
            module,
            context.case.nnx,
            args,
            kwargs,
            store=context.store,
            subtree=subtree,
        )
        return _record_with_taps(run, module, ref, options.rename or {})

    def judge(self, context: Context, compared: Compared) -> Sequence[CaseRecord]:
        """Judged rows, by running each side with the other's values."""
        return judge_forced(context, compared, self._called(context))

    def notes(self, trace: Trace) -> tuple[str, ...]:
        """A note on a function without taps."""
        tapped = any(call.tapped for call in trace.calls)
        return (NO_TAPS,) if isinstance(self.root, Functional) and not tapped else ()

    def _called(self, context: Context) -> nnx.Module:
        """The module that the case calls: the root, whatever its path is renamed to."""
        if not context.case.path:
            return self.root
        found = capture_nnx.submodules(self.root).get(context.port_path)
        if found is None:
            raise InputError(
                f"the port has no module {context.port_path!r}, counterpart of"
                f" {context.case.path!r}; use rename="
            )
        return found


def _record_with_taps(
    run: Callable[[], Trace], module: nnx.Module, ref: Trace, rename: Mapping[str, str]
) -> Trace:
    """The port's calls, operation by operation if it has taps that its programs may hide."""
    compiled: Trace | None = None
    if not isinstance(module, Functional):
        compiled = run()
        if not compiled.untapped and not _may_hide_taps(ref, compiled, rename):
            return compiled
    with jax.disable_jit():
        eager = run()
    if compiled is None or any(call.tapped for call in eager.calls):
        return eager
    return replace(compiled, untapped=eager.untapped)


def _may_hide_taps(ref: Trace, port: Trace, rename: Mapping[str, str]) -> bool:
    """True if a program compiled before the run may have a tap where the port makes no call."""
    made = {f".{call.path}" for call in port.calls}
    lacking = {f".{renamed(call.path, rename)}" for call in ref.calls if call.path} - made
    return any(captured(f"*.{name}", path) for name in taps.called() for path in lacking)
