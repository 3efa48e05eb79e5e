"""One change of a call after another, to find the one that makes it do what the port does."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from parity.core.arrays import Array
from parity.core.metrics import distance

# all files of probes, those that are believed first at the front
from parity.diagnose import (  # noqa: F401
    attention_probes,
    order_probes,
    padding_probes,
    result_changes,
    rotary_probes,
    value_probes,
)
from parity.diagnose.attention import Flow, names
from parity.diagnose.causes import EXPLAINED
from parity.diagnose.probe import PROBES, WHOLE
from parity.diagnose.replay import Change, Key, Operation, Replayer
from parity.diagnose.result_changes import NOTHING, Shown
from parity.diagnose.tape import NOWHERE, Slot, Tape
from parity.lines.values import ENDLESS

LARGEST = float(np.finfo(np.float32).max)

MOST = 60
"""How many runs of a call the changes of it may take."""

UNFIT = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
"""What a change raises that does not fit what the operation was given."""

Errors = tuple[float, float]
"""Distance of the port from a changed reference, in all its arrays and in those it has wrong."""

Way = tuple[str, str, Callable[[], Errors]]
"""A cause, what is changed in words, and the errors with that change."""


@dataclass(frozen=True)
class Target:
    """An array of the reference that a change may make the port's.

    `ref` is what the unchanged reference has there, as the port's lies, and `lies` makes it so of
    what is in the slot. Where the port is right, `port` is `ref`. What leaves the call has a `key`.
    """

    key: Key | None
    slot: Slot
    ref: Array
    port: Array
    lies: Callable[[torch.Tensor], Array]

    @property
    def wrong(self) -> bool:
        """True if the port has something else."""
        return self.port is not self.ref

    @cached_property
    def error(self) -> float:
        """Distance of the port from the unchanged reference, in units of its size."""
        return self.distance(self.ref) if self.wrong else 0.0

    def distance(self, array: Array | None) -> float:
        """Distance of the port from a changed reference, in units of its size."""
        if array is None or array.shape != self.port.shape:
            return float("inf")
        if array.dtype.kind not in "fcV":
            return 0.0
        return distance(np.ascontiguousarray(self.limited(array)), self.limited(self.port))[1]

    def limited(self, array: Array) -> Array:
        """The array without the huge numbers of masks.

        Inside the call they do not count at all. What leaves it is held at the limits of float32:
        `torch.finfo(x.dtype).min` is another number in the float64 run.
        """
        if self.key is not None and array.dtype != np.float64:
            return array
        most = self._most if self.key is None else LARGEST
        limited: Array = np.clip(array, -most, most)
        return limited if self.key is None else np.where(np.isinf(array), array, limited)

    @cached_property
    def _most(self) -> float:
        """A little more than the largest number of both: what a mask puts in is none."""
        sizes = np.abs(np.concatenate([self.ref.reshape(-1), self.port.reshape(-1)]))
        return 2 * float(sizes[sizes < ENDLESS].max(initial=0.0))


@dataclass
class Attempts:
    """The call that is changed, and what was spent on it."""

    replayer: Replayer
    tape: Tape
    runs: int = 0
    tried: int = 0
    untried: int = 0
    broken: dict[str, None] = field(default_factory=dict)

    def over(self) -> bool:
        """True if no more may be spent: another change may take a whole run."""
        return self.replayer.record.limit.over or self.tape.cost + self.runs > MOST - 1

    def words(self) -> str:
        """How many changes were tried, and how many were not."""
        limit = "the time for the diagnosis" if self.replayer.record.limit.over else f"{MOST} runs"
        more = f", {self.untried} not, after {limit}" if self.untried else ""
        broken = f"; broken probes: {', '.join(self.broken)}" if self.broken else ""
        return f"({self.tried} tried{more}){broken}"


class Search:
    """Tries changes of the operations at `near` places among the parts, or of all, on `targets`.

    The first of these is looked at alone before the others are.
    """

    def __init__(
        self,
        attempts: Attempts,
        targets: Sequence[Target],
        roundoff: float,
        near: Collection[int] | None = None,
        factors: Sequence[tuple[int, float]] = (),
    ) -> None:
        self._attempts, self._targets, self._tape = attempts, targets, attempts.tape
        self.error = _length(one.error for one in targets)
        self._factors = factors
        self.enough = 20 * roundoff / self.error if self.error else 0.0
        self._steps = [
            step
            for step in self._tape.steps
            if near is None or any(place in near for place in step.parts)
        ]
        self.changes: Mapping[int, Change] | None = None
        """The best change of operations, by their place."""
        self._last: Mapping[int, Change] | None = None
        self._base: Mapping[int, Change] = {}

    def best(self) -> Shown:
        """The change that leaves least of the error, of operations and then of the result alone.

        What leaves least of what the port has wrong, and may spoil what is right, is the last
        resort.
        """
        self.changes = None
        best, careless = changed = self.best_of(self._changes())
        if best[0] > EXPLAINED:
            best = min(best, self._variance(), key=lambda shown: shown[0])
        if best[0] > EXPLAINED:
            first = self._targets[0]
            ref, port = first.limited(first.ref), first.limited(first.port)
            best = min(best, result_changes.best(ref, port))
        if best is not changed[0]:
            self.changes = None
        return best if best[0] <= EXPLAINED else min(best, careless)

    def reordered(self) -> Shown:
        """The same values in another order, where they are."""
        first = self._targets[0]
        return result_changes.reordered(first.limited(first.ref), first.limited(first.port))

    def on_top(self, base: Mapping[int, Change]) -> Shown:
        """The change of other operations that leaves least together with these."""
        self._base = base
        best, _ = self.best_of(self._changes())
        self._base = {}
        return best

    def best_of(self, ways: Iterable[Way]) -> tuple[Shown, Shown]:
        """The best way by all arrays, and by those alone that the port has wrong."""
        best = careless = NOTHING
        for cause, text, run in ways:
            if best[0] <= min(self.enough, EXPLAINED) and cause != best[1]:
                break  # of one cause the value that explains most counts, not the first
            if self._attempts.over():
                self._attempts.untried += 1
                continue
            self._attempts.tried += 1
            try:
                left, wrong = (one / self.error for one in run())
            except UNFIT:
                continue
            if left < best[0] * 0.5:
                best, self.changes = (left, cause, text), self._last
            careless = (wrong, cause, text) if wrong < careless[0] * 0.5 else careless
        return best, careless

    def _changes(self) -> Iterator[Way]:
        everything = [step.operation for step in self._tape.steps]
        named, attention = names(Flow(everything))
        for cause, text, change in self.factors():
            yield cause, text, partial(self.changed, change)
        operations = [step.operation for step in self._steps]
        apart = bool(attention) and attention.isdisjoint(one.place for one in operations)
        for probe in PROBES:
            if apart and probe in WHOLE:
                continue
            try:
                trials = list(probe(everything if probe in WHOLE else operations))
            except UNFIT as error:
                self._attempts.broken[f"{probe.__name__} ({error!r})"] = None  # say so, and go on
                continue
            for trial in trials:
                cause = named(trial.cause, trial.changes)
                yield cause, trial.text, partial(self.changed, trial.changes)

    def factors(self) -> Iterator[tuple[str, str, Mapping[int, Change]]]:
        """The cause, words and change for each value that the port has so many times as large."""
        named, _ = names(Flow([step.operation for step in self._tape.steps]))
        for number, factor in self._factors:
            place = self._tape.numbers.get(number, NOWHERE).place
            if place >= 0 and factor != 1.0:
                text = f"a factor {factor:.6g} on {self._tape.steps[place].operation.name}"
                change = {place: partial(_times, factor=factor)}
                yield named("scale_or_offset", change), text, change

    def alike(self, changes: Mapping[int, Change]) -> Iterator[Mapping[int, Change]]:
        """The changes, and one in all that its line makes, and in all operations of its name."""
        yield changes
        if len(changes) == 1:
            ((place, change),) = changes.items()
            operations = [step.operation for step in self._tape.steps]
            named = [one for one in operations if one.name == operations[place].name]
            for same in ([x for x in named if x.line == operations[place].line], named):
                if len(same) > 1:
                    yield dict.fromkeys((one.place for one in same), change)

    def changed(self, changes: Mapping[int, Change]) -> Errors:
        """Errors with operations changed."""
        self._last, first = changes, self._targets[0]
        both = self._base.keys() & changes.keys()
        on_top = {place: partial(_both, self._base[place], changes[place]) for place in both}
        changes = {**self._base, **changes, **on_top}
        if first.key is None and self._with(changes, [first])[0] > EXPLAINED * first.error:
            return float("inf"), float("inf")  # what depends on it is no better
        return self._summed(self._with(changes, self._targets))

    def _with(self, changes: Mapping[int, Change], targets: Sequence[Target]) -> list[float]:
        found = self._tape.run(changes, {one.slot for one in targets})
        return [
            one.distance(one.lies(found[one.slot])) if one.slot in found else one.error
            for one in targets
        ]

    def run(self, *args: Any, **kwargs: Any) -> Errors:
        """Errors of a run of the call, in what leaves it."""
        self._attempts.runs += 1
        result = self._attempts.replayer.run(*args, **kwargs)
        return self._summed(
            [0.0 if one.key is None else one.distance(result.get(one.key)) for one in self._targets]
        )

    def _summed(self, errors: Sequence[float]) -> Errors:
        pairs = zip(self._targets, errors, strict=True)
        return _length(errors), _length(error for one, error in pairs if one.wrong)

    def _variance(self) -> Shown:
        """The part of the error that a variance in one pass does not explain."""
        first = self._targets[0]
        for step in self._steps:
            found = value_probes.group_factors(step.operation, first.ref, first.port)
            if found is not None and self.error / 100 < found[1] < self.error * 100:
                text = (
                    "a factor for each group, as the variance in one pass makes it (off by "
                    f"{found[1]:.1e} in PyTorch's order of summation, by {self.error:.1e} in the "
                    "port),"
                )
                return found[0], "norm_variance", text
        return NOTHING


def _both(first: Change, second: Change, operation: Operation) -> Any:
    """The second change of an operation that does what the first makes of it."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return first(replace(operation, args=args, kwargs=kwargs))

    return second(replace(operation, function=function))


def _times(operation: Operation, factor: float) -> Any:
    return operation.result() * factor


def _length(errors: Iterable[float]) -> float:
    return float(sum(error**2 for error in errors) ** 0.5)
