"""The cause of a fault: the change of the reference that makes it do what the port does.

Evidence is what was measured. Where nothing explains the error, the cause is `glue` for a container
and `unknown` for anything else: no guess is made by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from parity.core.arrays import Array
from parity.core.calls import LeafMatch, Match
from parity.core.metrics import distance, unit_roundoff
from parity.core.tensors import Weight
from parity.core.verdicts import Diagnosis

# all files of probes, those that are believed first at the front
from parity.diagnose import array_probes, order_probes, padding_probes, value_probes  # noqa: F401
from parity.diagnose.array_probes import NOTHING, Shown
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.causes import EXPLAINED, HINTS
from parity.diagnose.error_map import location
from parity.diagnose.probe import PROBES
from parity.diagnose.replay import Change, Changed, Key, Replayer, laid, port_values
from parity.diagnose.tape import Departed, Slot, Tape
from parity.diagnose.without_replay import by_kind, by_repetition, suspected
from parity.judge.faults import Found

MOST = 60
"""How many runs of a call the changes of it may take."""

Errors = tuple[float, float]
"""Distance of the port from a changed reference, in all its arrays and in those it has wrong."""


def diagnose(found: Found, record: CaseRecord) -> Diagnosis:
    """The cause of a fault of a reference that runs, and the evidence for it."""
    matches = {match.ref.order: match for match in record.matches}
    match = owner = matches[found.row.order]
    while owner.ref.tapped:  # what a tap shows is the work of the call around it
        owner = matches[owner.parent]
    shown = next(chain(by_kind(found, match), by_repetition(owner, record)), None)
    cause, evidence = shown or _Investigation(found, owner, record).result()
    return Diagnosis(cause, evidence, HINTS[cause])


@dataclass(frozen=True)
class Target:
    """An array of the reference that a change may make the port's.

    `ref` is what the unchanged reference has there, as the port's lies, and `lies` makes it so of
    what is in the slot. Where the port is right, `port` is `ref`.
    """

    key: Key
    slot: Slot
    ref: Array
    port: Array
    lies: Callable[[torch.Tensor], Array]

    @cached_property
    def error(self) -> float:
        """Distance of the port from the unchanged reference, in units of its size."""
        return 0.0 if self.port is self.ref else self.distance(self.ref)

    def distance(self, array: Array | None) -> float:
        """Distance of the port from a changed reference, in units of its size."""
        if array is None or array.shape != self.port.shape:
            return float("inf")
        if array.dtype.kind not in "fcV":
            return 0.0
        return distance(np.ascontiguousarray(array), self.port)[1]


class _Investigation:
    """Tries one change of the reference's call `match` after another.

    That is the call at fault, or the one in whose code the tap at fault is.
    """

    def __init__(self, found: Found, match: Match, record: CaseRecord) -> None:
        self._found, self._match, self._record = found, match, record
        self._replayer = Replayer(record, match)
        self._wrong = dict(self._arrays(found.row.order))
        self._lines = suspected(match, record)
        self._tried_lines: list[Weight] = []
        self._tried = self._left = self._runs = 0
        self._broken: list[str] = []
        self._tape = Tape()
        self._targets: list[Target] = []

    def result(self) -> tuple[str, str]:
        """The cause and its evidence."""
        container = any(m.parent == self._match.ref.order for m in self._record.matches)
        fallback = "glue" if container else "unknown"
        if not self._wrong:
            return fallback, "no output could be compared"
        self._targets = self._all()
        place, error = self._place(), _length(one.error for one in self._targets)
        if not np.isfinite(error) or error == 0.0:
            return fallback, place
        left, cause, text = self._best(error)
        if left <= EXPLAINED:
            return cause, f"{text} explains {100 * (1 - left):.4g} % of the error, {place}"
        untried = [line for line in self._lines if line not in self._tried_lines]
        if untried:
            return untried[0].cause, f"{'; '.join(line.text for line in untried[:3])}; {place}"
        broken = f"; broken probes: {', '.join(self._broken)}" if self._broken else ""
        text = f"no change of the reference explains it ({self._tried} tried{self._untried()})"
        return fallback, f"{place}; {text}{broken}"

    def _untried(self) -> str:
        return f", {self._left} not: that would take too long" if self._left else ""

    def _all(self) -> list[Target]:
        """All arrays that leave the call, those first that the port has wrong."""
        made: dict[Key, Target] = {}

        def note(key: Key, tensor: torch.Tensor, leaf: LeafMatch) -> None:
            ref = np.array(laid(tensor, leaf))  # the call may write to it
            port, lies = self._wrong.get(key, ref), partial(laid, leaf=leaf)
            made[key] = Target(key, self._tape.slot(tensor), ref, port, lies)

        self._replayer.run(self._tape, note=note)
        first = [made[key] for key in self._wrong if key in made]
        return [*first, *(one for key, one in made.items() if key not in self._wrong)]

    def _best(self, error: float) -> Shown:
        """The change that leaves least of the error."""
        best, careless = self._best_run(error)
        if best[0] > EXPLAINED:
            best = min(best, self._variance(error), key=lambda shown: shown[0])
        if best[0] > EXPLAINED:
            first = self._targets[0]
            best = min(best, array_probes.best(first.ref, first.port))
        return best if best[0] <= EXPLAINED else min(best, careless)

    def _best_run(self, error: float) -> tuple[Shown, Shown]:
        """The best of all changed runs: by all arrays, and by those alone that are wrong in the
        port, where a change may spoil what is right.
        """
        enough = 20 * self._roundoff() / error
        best = careless = NOTHING
        for cause, text, run in chain(self._weights(), self._arguments(), self._changes()):
            if best[0] <= min(enough, EXPLAINED) and cause != best[1]:
                break  # of one cause the value that explains most counts, not the first
            if self._tape.cost + self._runs >= MOST:
                self._left += 1
                continue
            self._tried += 1
            try:
                left, wrong = (one / error for one in run())
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
                continue  # the change does not fit what the operation was given
            best = (left, cause, text) if left < best[0] * 0.5 else best
            careless = (wrong, cause, text) if wrong < careless[0] * 0.5 else careless
        return best, careless

    def _arrays(self, order: int) -> Iterator[tuple[Key, Array]]:
        """The port's arrays that are not the reference's: child inputs, then outputs.

        Those out of their limit come first.
        """
        exclusives, store = self._record.exclusives, self._record.store
        for child in self._found.child_inputs:
            key = (child.child, child.leaf)
            yield key, store.get(exclusives.received[key])
        outputs = [key for key in exclusives.outputs if key[0] == order]
        for key in sorted(outputs, key=lambda key: -exclusives.errors[key].rel_l2):
            yield key, store.get(exclusives.outputs[key])
        inside = {match.ref.order for match in self._record.matches if match.parent == order}
        for key, buffer in exclusives.received.items():
            if key[0] in inside:
                yield key, store.get(buffer)

    def _changed(self, changes: Mapping[int, Change]) -> Errors:
        """Errors with operations changed."""
        slots = {one.slot for one in self._targets}
        try:
            found = self._tape.run(changes, slots)
        except Departed:
            return self._run(Changed(changes))
        made = (one.lies(found[one.slot]) if one.slot in found else None for one in self._targets)
        errors = (
            one.error if array is None else one.distance(array)
            for one, array in zip(self._targets, made, strict=True)
        )
        return self._summed(list(errors))

    def _run(self, *args: Any, **kwargs: Any) -> Errors:
        """Errors of a run of the call."""
        self._runs += 1
        result = self._replayer.run(*args, **kwargs)
        return self._summed([one.distance(result.get(one.key)) for one in self._targets])

    def _summed(self, errors: Sequence[float]) -> Errors:
        pairs = zip(self._targets, errors, strict=True)
        return _length(errors), _length(x for one, x in pairs if one.key in self._wrong)

    def _roundoff(self) -> float:
        """Relative error of the reference itself, and at least four roundings."""
        floors = [4 * unit_roundoff(port.dtype) for port in self._wrong.values()]
        for (order, _), error in self._record.exclusives.errors.items():
            if order == self._found.row.order and error.floor_rel_l2 == error.floor_rel_l2:
                floors.append(error.floor_rel_l2)
        return max(floors)

    def _place(self) -> str:
        first = self._targets[0]
        named = not any(m.ref.order == first.key[0] and m.ref.tapped for m in self._record.matches)
        return location(first.ref, first.port, named=named)

    def _weights(self) -> Iterator[tuple[str, str, Callable[[], Errors]]]:
        """The port's values in the tensors that differ from the reference's."""
        tensors, self._tried_lines = port_values(
            self._lines, self._record.sides, self._replayer.reference.modules
        )
        if tensors:
            findings = "; ".join(line.text for line in self._lines[:3])
            text = f"{findings}: with the port's values the reference does the same, and that"
            yield self._lines[0].cause, text, partial(self._run, tensors=tensors)

    def _arguments(self) -> Iterator[tuple[str, str, Callable[[], Errors]]]:
        """Arguments left out, that came from an earlier call of the same module."""
        earlier = {
            leaf.buffer
            for call in self._record.calls
            if call.path == self._match.ref.path and call.number < self._match.ref.number
            for leaf in call.outputs
            if leaf.buffer
        }
        for leaf in self._match.ref.inputs:
            name = leaf.name.split(".")[0]
            if leaf.buffer in earlier:

                def without(given: dict[str, Any], name: str = name) -> dict[str, Any]:
                    return {**given, name: None}

                text = f"leaving out `{name}`, which an earlier call returned,"
                yield "cache", text, partial(self._run, change=without)

    def _changes(self) -> Iterator[tuple[str, str, Callable[[], Errors]]]:
        operations = [step.operation for step in self._tape.steps]
        for probe in PROBES:
            try:
                trials = list(probe(operations))
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                self._broken.append(f"{probe.__name__} ({error!r})")  # say so, and go on
                continue
            for trial in trials:
                yield trial.cause, trial.text, partial(self._changed, trial.changes)

    def _variance(self, error: float) -> Shown:
        """The part of the error that a variance in one pass does not explain."""
        first = self._targets[0]
        for step in self._tape.steps:
            found = value_probes.group_factors(step.operation, first.ref, first.port)
            if found is not None and error / 100 < found[1] < error * 100:
                text = (
                    "a factor for each group, as the variance in one pass makes it (off by "
                    f"{found[1]:.1e} in PyTorch's order of summation, by {error:.1e} in the port),"
                )
                return found[0], "norm_variance", text
        return NOTHING


def _length(errors: Iterable[float]) -> float:
    return float(sum(error**2 for error in errors) ** 0.5)
