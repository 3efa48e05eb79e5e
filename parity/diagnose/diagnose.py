"""The cause of a fault: the change of the reference that makes it do what the port does.

Evidence is what was measured. Where nothing explains the error, the cause is `glue` for a container
and `unknown` for anything else: no guess is made by name.
"""

from collections.abc import Callable, Collection, Iterator
from functools import cached_property, partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from parity.core.arrays import Array
from parity.core.calls import Match
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
from parity.diagnose.replay import Changed, Replayer, Result, in_torch_layout
from parity.diagnose.without_replay import by_kind, by_repetition, suspected
from parity.judge.faults import Found


def diagnose(found: Found, record: CaseRecord) -> Diagnosis:
    """The cause of a fault of a reference that runs, and the evidence for it."""
    matches = {match.ref.order: match for match in record.matches}
    match = owner = matches[found.row.order]
    while owner.ref.tapped:  # what a tap shows is the work of the call around it
        owner = matches[owner.parent]
    shown = next(chain(by_kind(found, match), by_repetition(owner, record)), None)
    cause, evidence = shown or _Investigation(found, owner, record).result()
    return Diagnosis(cause, evidence, HINTS[cause])


class _Investigation:
    """Tries one change of the reference's call `match` after another.

    That is the call at fault, or the one in whose code the tap at fault is.
    """

    def __init__(self, found: Found, match: Match, record: CaseRecord) -> None:
        self._found, self._match, self._record = found, match, record
        self._replayer = Replayer(record, match)
        self._targets = dict(self._wrong(found.row.order))
        self._lines = suspected(match, record)
        self._tried_lines: list[Weight] = []
        self._tried = 0
        self._broken: list[str] = []

    def result(self) -> tuple[str, str]:
        """The cause and its evidence."""
        container = any(m.parent == self._match.ref.order for m in self._record.matches)
        fallback = "glue" if container else "unknown"
        if not self._targets:
            return fallback, "no output could be compared"
        place, error = self._place(), self._error(self._plain)
        if not np.isfinite(error) or error == 0.0:
            return fallback, place
        left, cause, text = self._best(error)
        if left <= EXPLAINED:
            return cause, f"{text} explains {100 * (1 - left):.4g} % of the error, {place}"
        untried = [line for line in self._lines if line not in self._tried_lines]
        if untried:
            return untried[0].cause, f"{'; '.join(line.text for line in untried[:3])}; {place}"
        broken = f"; broken probes: {', '.join(self._broken)}" if self._broken else ""
        text = f"none of {self._tried} changes of the reference explains it{broken}"
        return fallback, f"{place}; {text}"

    def _best(self, error: float) -> Shown:
        """The change that leaves least of the error."""
        best, careless = self._best_run(error)
        if best[0] > EXPLAINED:
            best = min(best, self._variance(error), key=lambda shown: shown[0])
        if best[0] > EXPLAINED:
            key, port = next(iter(self._targets.items()))
            if key in self._plain:
                best = min(best, array_probes.best(self._plain[key], port))
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
            self._tried += 1
            try:
                result = run()
                left = self._error(result) / error
                wrong = self._error(result, self._targets) / error
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
                continue  # the change does not fit what the operation was given
            best = (left, cause, text) if left < best[0] * 0.5 else best
            careless = (wrong, cause, text) if wrong < careless[0] * 0.5 else careless
        return best, careless

    def _wrong(self, order: int) -> Iterator[tuple[tuple[int, str], Array]]:
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

    def _error(self, result: Result, keys: Collection[tuple[int, str]] | None = None) -> float:
        """Distance of the port from a changed reference, of each array in units of its size.

        Unless `keys` narrow it down, what the port has right counts too.
        """
        total = 0.0
        for key in self._plain if keys is None else keys:
            port = self._targets[key] if key in self._targets else self._plain[key]
            ref = result.get(key)
            if ref is None or ref.shape != port.shape:
                return float("inf")
            if ref.dtype.kind in "fcV":
                total += distance(np.ascontiguousarray(ref), port)[1] ** 2
        return float(total**0.5)

    def _roundoff(self) -> float:
        """Relative error of the reference itself, and at least four roundings."""
        floors = [4 * unit_roundoff(port.dtype) for port in self._targets.values()]
        for (order, _), error in self._record.exclusives.errors.items():
            if order == self._found.row.order and error.floor_rel_l2 == error.floor_rel_l2:
                floors.append(error.floor_rel_l2)
        return max(floors)

    def _place(self) -> str:
        key, port = next(iter(self._targets.items()))
        ref = self._plain.get(key)
        named = not any(m.ref.order == key[0] and m.ref.tapped for m in self._record.matches)
        return location(ref, port, named=named) if ref is not None else ""

    @cached_property
    def _plain(self) -> Result:
        """The arrays of the unchanged reference in float64."""
        return self._replayer.run()

    def _weights(self) -> Iterator[tuple[str, str, Callable[[], Result]]]:
        """The port's values in the tensors that differ from the reference's."""
        tensors = {}
        for line in self._lines:
            values = self._record.sides.value(line.nnx_name)
            if values is not None and values.size == prod(line.shape):
                module = self._replayer.reference.modules[line.path]
                name = line.name.rpartition(".")[2]
                tensors[module, name] = in_torch_layout(values, line.shape)
                self._tried_lines.append(line)
        if tensors:
            findings = "; ".join(line.text for line in self._lines[:3])
            text = f"{findings}: with the port's values the reference does the same, and that"
            yield self._lines[0].cause, text, partial(self._replayer.run, tensors=tensors)

    def _arguments(self) -> Iterator[tuple[str, str, Callable[[], Result]]]:
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
                yield "cache", text, partial(self._replayer.run, change=without)

    def _changes(self) -> Iterator[tuple[str, str, Callable[[], Result]]]:
        operations = self._replayer.operations()
        for probe in PROBES:
            try:
                trials = list(probe(operations))
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                self._broken.append(f"{probe.__name__} ({error!r})")  # say so, and go on
                continue
            for trial in trials:
                mode = Changed(trial.changes)
                yield trial.cause, trial.text, partial(self._replayer.run, mode)

    def _variance(self, error: float) -> Shown:
        """The part of the error that a variance in one pass does not explain."""
        key, port = next(iter(self._targets.items()))
        for operation in self._replayer.operations() if key in self._plain else ():
            found = value_probes.group_factors(operation, self._plain[key], port)
            if found is not None and error / 100 < found[1] < error * 100:
                text = (
                    "a factor for each group, as the variance in one pass makes it (off by "
                    f"{found[1]:.1e} in PyTorch's order of summation, by {error:.1e} in the port),"
                )
                return found[0], "norm_variance", text
        return NOTHING
