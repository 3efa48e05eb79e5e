"""The cause of each mistake in a call: the change of the reference that does what the port does.

Evidence is what was measured. Where nothing explains the error, the cause is `glue` for a container
and `unknown` for anything else: no guess is made by name.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, takewhile
from typing import Any

import numpy as np
import torch

from parity.capture.nnx import target
from parity.capture.torch import to_numpy
from parity.core.arrays import Array, comparable
from parity.core.calls import LeafMatch, Match
from parity.core.lines import Lines
from parity.core.metrics import unit_roundoff
from parity.core.tensors import Weight
from parity.core.verdicts import Diagnosis
from parity.diagnose.case_record import CaseRecord
from parity.diagnose.causes import EXPLAINED, HINTS
from parity.diagnose.error_map import location
from parity.diagnose.findings import Finding, Kept
from parity.diagnose.replay import Change, Key, Replayer, laid, port_values
from parity.diagnose.result_changes import NOTHING, Shown
from parity.diagnose.search import Attempts, Search, Target, Way
from parity.diagnose.tape import NOWHERE, Tape
from parity.diagnose.without_replay import by_kind, by_repetition, inside, suspected
from parity.force.common import Sides
from parity.force.float64 import TorchModules
from parity.judge.faults import Found
from parity.lines.call import Scene, placed
from parity.lines.lines import Aligned, Parted, beside_line, lines_at, lines_of, same_line
from parity.lines.partings import Mistake
from parity.lines.source import runs_in
from parity.lines.torch_operations import Watched


@dataclass(frozen=True)
class KeptRun:
    """One run of a call on each side: where they part, and the reference's operations."""

    aligned: Aligned
    tape: Tape
    sides: Sides

    @property
    def lines(self) -> tuple[Lines, ...]:
        """The lines of each mistake."""
        return tuple(one.lines for one in self.aligned.parted())

    def on_one_side(self, opened: Collection[Match]) -> bool:
        """True if all mistakes are in the code of these calls, which are laid open, or all
        elsewhere, if there are any, and mending them leaves none.
        """
        aligned = self.aligned
        mistakes = aligned.mistakes if aligned.apart else ()  # else all that parts is rounding
        if not aligned.whole or any(one.after is None or one.still for one in mistakes[-1:]):
            return False
        reference = self.sides.reference
        assert isinstance(reference, TorchModules)
        ref = [reference.of(match.ref)[0].forward for match in opened]
        port = [target(self.sides.module(match), "__call__") for match in opened]
        inside = {
            runs_in(frames, functions)
            for one in mistakes
            for functions, found in ((ref, one.parting.ref), (port, one.parting.port))
            for frames, _ in found[:1]
        }
        return len(inside) <= 1


def keep(order: int, record: CaseRecord) -> KeptRun:
    """The reference's call with this `order`, and the port's, run operation by operation."""
    tapes: list[Tape] = []

    def around(watched: Watched) -> Tape:
        tapes.append(Tape(watched))
        return tapes[0]

    calls = record.calls, record.port_calls
    scene = Scene(record.matches, calls, record.sides, record.store)
    return KeptRun(lines_of(scene, order, around), tapes[0], record.sides)


def diagnose(found: Found, record: CaseRecord, kept: Kept | None = None) -> Sequence[Finding]:
    """The cause of each mistake in a call of a reference that runs, and the evidence for it.

    Without what is `kept` of it, of all that is wrong together.
    """
    assert kept is None or isinstance(kept, KeptRun)
    matches = {match.ref.order: match for match in record.matches}
    match = owner = matches[found.row.order]
    while owner.ref.tapped:  # what a tap shows is the work of the call around it
        owner = matches[owner.parent]
    shown = next(chain(by_kind(found, match), by_repetition(owner, record)), None)
    if shown is not None:
        return [one_finding(Diagnosis(*shown, HINTS[shown[0]]), kept)]
    return _Investigation(found, owner, record, kept).findings()


def one_finding(diagnosis: Diagnosis, kept: Kept | None) -> Finding:
    """One cause that all lines are of."""
    return Finding(diagnosis, reduce(Lines.joined, kept.lines) if kept is not None else None)


@dataclass(frozen=True)
class _Local:
    """What was found for one mistake: the change that leaves least of what is wrong by it alone,
    the results that are, and where in an array.
    """

    mistake: Mistake
    lines: Lines
    shown: Shown = NOTHING
    changes: Mapping[int, Change] | None = None
    keys: tuple[Key, ...] = ()
    place: str = ""
    at: int = 0
    """The place of the operation that makes the first value which is wrong."""
    more: tuple["_Local", ...] = ()
    """What else is wrong there, in no place of its own."""

    @property
    def begins(self) -> int:
        """The place of the first operation that is changed, or that shows the mistake."""
        return min(self.changes or (self.at,))

    @property
    def sure(self) -> bool:
        """True if next to nothing is left."""
        return self.shown[0] <= SURE


class _Investigation:
    """Looks for the cause of each mistake in the reference's call `match`.

    That is the call at fault, or the one in whose code the tap at fault is.
    """

    def __init__(
        self, found: Found, match: Match, record: CaseRecord, kept: KeptRun | None
    ) -> None:
        self._found, self._match, self._record, self._kept = found, match, record, kept
        self._wrong = dict(self._arrays(found.row.order))
        self._suspected = suspected(match, record)
        self._tried: list[Weight] = []
        self._attempts = Attempts(Replayer(record, match), kept.tape if kept else Tape())
        at_tap = found.row.order != match.ref.order
        if kept is not None and at_tap and not self._explains(kept):
            self._kept = None

    def _explains(self, kept: KeptRun) -> bool:
        """True if each mistake of the call makes an array wrong that is at fault: of two taps in
        one call each has its own.
        """
        made = [self._mended(mistake, kept) for mistake in kept.aligned.mistakes]
        return all(any(one.wrong and one.key in self._wrong for one in targets) for targets in made)

    def findings(self) -> Sequence[Finding]:
        """The causes and their evidence: one, if one change accounts for the whole error."""
        if not self._wrong:
            return [self._one(self._fallback, "no output could be compared")]
        targets = self._leaving(self._kept) if self._kept else self._from_run()
        whole, place = Search(self._attempts, targets, self._roundoff()), self._place(targets[0])
        if not np.isfinite(whole.error) or whole.error == 0.0:
            return [self._one(self._fallback, "", place)]
        left_out = self._not_called(whole)
        few = len(left_out) <= FEW
        ways = self._weights(whole), self._arguments(whole), left_out if few else ()
        shown, _ = whole.best_of(chain(*ways))
        several, groups = list[_Local](), list[tuple[_Local, Finding]]()
        if shown[0] > EXPLAINED and self._kept is not None:
            several = self._several(self._kept)
            groups = self._grouped(several, self._kept)
            shown = min((_alone(x, whole) for x in several), key=lambda x: x[0], default=NOTHING)
            if shown[0] > whole.enough and len(groups) > 1 and all(x.sure for x, _ in groups):
                return _told(groups)
        search = whole
        if shown[0] > EXPLAINED:
            partings = [one.mistake.parting for one in several]
            near = {place for one in partings for place in one.near} or None
            factors = [factor for one in partings for factor in one.factors]
            search = Search(self._attempts, targets, self._roundoff(), near, factors)
            shown = search.best()
        if shown[0] > EXPLAINED and not few:
            shown, _ = whole.best_of(left_out)
        if shown[0] <= EXPLAINED:
            return [self._one(shown[1], _words(shown), place)]
        untried = [line for line in self._suspected if line not in self._tried]
        apart = len(groups) > 1 and not untried and not self._other_values
        if apart or any(one.shown[0] <= EXPLAINED for one, _ in groups):
            return _told(groups)
        if (shown := search.reordered())[0] <= EXPLAINED:
            return [self._one(shown[1], _words(shown), place)]
        if untried:
            texts = "; ".join(line.text for line in untried[:3])
            return [self._one(untried[0].cause, texts, place)]
        return [self._one(self._fallback, self._nothing(bool(several)), place)]

    @property
    def _other_values(self) -> bool:
        """True if weights in the call have other values: what comes of them is one mistake."""
        path = self._match.ref.path
        below = f"{path}." if path else ""
        lines = [line for line in self._record.weights if line.cause == "weights_value"]
        return any(f"{line.path}.".startswith(below) for line in lines)

    @property
    def _fallback(self) -> str:
        container = any(m.parent == self._match.ref.order for m in self._record.matches)
        return "glue" if container else "unknown"

    def _one(self, cause: str, evidence: str, place: str = "") -> Finding:
        return one_finding(Diagnosis(cause, evidence, HINTS[cause], place), self._kept)

    def _nothing(self, lines: bool) -> str:
        first = "compare the lines: " if lines else ""
        return f"{first}no change of the reference explains it {self._attempts.words()}"

    def _several(self, kept: KeptRun) -> list[_Local]:
        """The change of operations between the lines that explains each mistake best; one in a
        line that was explained before, where this change may be made, is not looked into.
        """
        found: list[_Local] = []
        mistakes = kept.aligned.mistakes
        for mistake, lines in zip(mistakes, lines_at(mistakes), strict=True):
            like = kept.tape.like(mistake.parting.near)
            again = (
                one
                for one in found
                if one.sure and same_line(one.lines, lines, both=True)
                if one.changes is None or like.issuperset(one.changes)
            )
            known = next(again, None)
            own = replace(known, mistake=mistake) if known else None
            found.append(own or self._local(mistake, lines, kept, found))
        return found

    def _local(
        self, mistake: Mistake, lines: Lines, kept: KeptRun, others: Sequence[_Local]
    ) -> _Local:
        targets, parting = self._mended(mistake, kept), mistake.parting
        search = Search(self._attempts, targets, self._roundoff(), parting.near, parting.factors)
        if not np.isfinite(search.error) or search.error == 0.0:
            return _Local(mistake, lines)
        keys = tuple(one.key for one in targets if one.key is not None and one.wrong)
        sizes = f"off by {targets[0].error:.1e} at its line", self._place(targets[0])
        place = "; ".join(filter(None, sizes))
        at = targets[0].slot.place
        for one in {one.shown: one for one in others if one.sure and one.changes}.values():
            ways = [(*one.shown[1:], partial(search.changed, one.changes or {}))]
            if search.best_of(ways)[0][0] <= search.enough:
                return replace(one, mistake=mistake, lines=lines, keys=keys, at=at)
        own = _Local(mistake, lines, search.best(), search.changes, keys, place, at)
        if own.changes is None:
            same = (one for one in others if one.sure and at in (one.changes or ()))
            own = replace(next(same, own), mistake=mistake, keys=keys, at=at)
        return own if own.shown[0] <= search.enough else _with_second(own, search, others)

    def _grouped(self, several: Sequence[_Local], kept: KeptRun) -> list[tuple[_Local, Finding]]:
        """The best explained of the mistakes that are one, by their lines and causes."""
        by_mistake = {id(one.mistake): one for one in several}

        def differ(parted: Parted, mistake: Mistake) -> bool:
            own = by_mistake[id(mistake)]
            sure = [one for x in parted.mistakes if (one := by_mistake[id(x)]).sure]
            if not sure or not own.sure:
                return bool(sure) != own.sure
            # what an array alone shows is no other cause beside one of an operation
            beside = own.changes is None and any(beside_line(x.lines, own.lines) for x in sure)
            return sure[0].shown[1] != own.shown[1] and not beside

        found = []
        for parted in kept.aligned.parted(differ) if several else ():
            ones = [by_mistake[id(mistake)] for mistake in parted.mistakes]
            best = min(ones, key=lambda one: one.shown[0])
            cause, text = best.shown[1], _words(best.shown)
            if best.shown[0] > EXPLAINED:
                cause, text = self._fallback, self._nothing(True)
            diagnosis = Diagnosis(cause, text, HINTS[cause], best.place)
            keys = tuple(key for one in ones for key in one.keys)
            found.append((best, Finding(diagnosis, parted.lines, keys)))
            for one in best.more:
                cause, text = one.shown[1], _words(one.shown)
                diagnosis = Diagnosis(cause, text, HINTS[cause], one.place)
                found.append((one, Finding(diagnosis, parted.lines, keys)))
        return sorted(found, key=lambda pair: pair[0].begins)

    def _leaving(self, kept: KeptRun) -> list[Target]:
        """All arrays that leave the call, those first that the port has wrong."""
        aligned, own = kept.aligned, self._match.ref.order
        near = {own, *(m.ref.order for m in self._record.matches if m.parent == own)}
        made: dict[Key, Target] = {}
        for key, leaf in aligned.leaves.items():
            if key[0] in near and key in aligned.ref.results and comparable(leaf):
                number = aligned.ref.results[key].value
                made[key] = self._target(kept, key, number, self._wrong.get(key))
        return self._sorted(made)

    def _from_run(self) -> list[Target]:
        """The same from a run of the reference alone."""
        made: dict[Key, Target] = {}
        tape = self._attempts.tape

        def note(key: Key, tensor: torch.Tensor, leaf: LeafMatch) -> None:
            ref = np.array(laid(tensor, leaf))  # the call may write to it
            port, lies = self._wrong.get(key, ref), partial(laid, leaf=leaf)
            made[key] = Target(key, tape.slot(tensor), ref, port, lies)

        self._attempts.replayer.run(tape, note=note)
        return self._sorted(made)

    def _sorted(self, made: Mapping[Key, Target]) -> list[Target]:
        first = [made[key] for key in self._wrong if key in made]
        return [*first, *(one for key, one in made.items() if key not in self._wrong)]

    def _target(self, kept: KeptRun, key: Key, number: int, port: Array | None) -> Target:
        leaf, program = kept.aligned.leaves[key], kept.aligned.ref.program
        ref = placed(program.values[number].array, leaf)
        slot = kept.tape.numbers.get(number, NOWHERE)
        return Target(key, slot, ref, ref if port is None else port, partial(laid, leaf=leaf))

    def _mended(self, mistake: Mistake, kept: KeptRun) -> list[Target]:
        """What becomes right if a mistake is mended, the first value of it first, and what is
        right before.
        """
        aligned, tape = kept.aligned, kept.tape
        wrong = {(pair.ref.value, pair.port.value) for pair in mistake.wrong}
        still = {(pair.ref.value, pair.port.value) for pair in mistake.still}
        found: list[Target] = []
        for key in aligned.leaves:
            if key in aligned.ref.results and key in aligned.port.results:
                pair = aligned.ref.results[key].value, aligned.port.results[key].value
                port = mistake.before.values[pair[1]].array if pair in wrong else None
                if pair not in still:
                    found.append(self._target(kept, key, pair[0], port))
        found.sort(key=lambda one: not one.wrong)
        first = next(mistake.mended(tape.after(mistake.parting.near)), None)
        if first is not None:
            number, order, array = first
            ref = order.of(aligned.ref.program.values[number].array)
            lies = lambda tensor: order.of(to_numpy(tensor, False))  # noqa: E731
            found.insert(0, Target(None, tape.numbers[number], ref, array, lies))
        return found

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

    def _roundoff(self) -> float:
        """Relative error of the reference itself, and at least four roundings."""
        floors = [4 * unit_roundoff(port.dtype) for port in self._wrong.values()]
        for (order, _), error in self._record.exclusives.errors.items():
            if order == self._found.row.order and error.floor_rel_l2 == error.floor_rel_l2:
                floors.append(error.floor_rel_l2)
        return max(floors)

    def _place(self, target: Target) -> str:
        tapped = {match.ref.order for match in self._record.matches if match.ref.tapped}
        named = target.key is not None and target.key[0] not in tapped
        return location(target.limited(target.ref), target.limited(target.port), named=named)

    def _weights(self, whole: Search) -> Iterator[Way]:
        """The port's values in the tensors that differ from the reference's."""
        tensors, self._tried = port_values(
            self._suspected, self._record.sides, self._attempts.replayer.reference.modules
        )
        if tensors:
            findings = "; ".join(line.text for line in self._suspected[:3])
            text = f"{findings}: with the port's values the reference does the same, and that"
            yield self._suspected[0].cause, text, partial(whole.run, tensors=tensors)

    def _arguments(self, whole: Search) -> Iterator[Way]:
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
                yield "cache", text, partial(whole.run, change=without)

    def _not_called(self, whole: Search) -> Sequence[Way]:
        """Modules with tensors left out that ran inside the call and were not compared."""
        modules = self._attempts.replayer.reference.modules
        text = "the port does not call `{}`: leaving it out"
        return [
            ("not_called", text.format(path), partial(whole.run, without=path))
            for path in inside(self._match, self._record)
            if any(True for _ in modules[path].parameters())
        ]


def _told(groups: Sequence[tuple[_Local, Finding]]) -> list[Finding]:
    """A finding for each change. In doubt, what has none is the work of the first that has one, but
    for what goes wrong before that, in other results.
    """
    unknown = [finding for one, finding in groups if one.shown[0] > EXPLAINED]
    by_change: dict[tuple[str, str], Finding] = {}
    for one, finding in groups:
        if one.shown[0] <= EXPLAINED:
            _, *change = one.shown
            same = by_change.get(key := (change[0], change[1]))
            by_change[key] = finding if same is None else _joined(same, finding)
    if not by_change:
        return unknown
    first, *others = by_change.values()
    before = [finding for _, finding in takewhile(lambda x: x[0].shown[0] > EXPLAINED, groups)]
    apart = [one for one in before if one.keys and set(one.keys).isdisjoint(first.keys)]
    rest = [one for one in unknown if one not in apart]
    return [*([reduce(_joined, apart)] if apart else []), reduce(_joined, rest, first), *others]


def _joined(first: Finding, more: Finding) -> Finding:
    lines = first.lines.joined(more.lines) if first.lines and more.lines else first.lines
    return replace(first, lines=lines, keys=(*first.keys, *more.keys))


FEW = 8
"""Modules that may have been left out are tried first if there are no more, each by a whole run: a
port that is a function calls none."""

SURE = 0.01
"""A change that leaves more is believed only if none explains all that is wrong in the call."""


def _words(shown: Shown) -> str:
    return f"{shown[2]} explains {100 * (1 - shown[0]):.4g} % of the error"


def _with_second(own: _Local, search: Search, others: Sequence[_Local]) -> _Local:
    """A mistake of which one change explains not all, with a second on top, if that does.

    The first is the best there is, a factor, or what explains another mistake.
    """
    best = [own] if own.changes is not None and own.shown[0] <= EXPLAINED else []
    factors = [
        replace(own, shown=(1.0, cause, text), changes=change)
        for cause, text, change in (() if best else search.factors())
    ]
    known = {one.shown[1:]: one for one in others if one.sure and one.changes is not None}
    for one in (*best, *factors, *known.values()):
        left, cause, text = search.on_top(one.changes or {})
        if left > SURE or left > own.shown[0] / 10:
            continue
        shown = left, cause, f"{text}, besides {one.shown[2]},"
        second = replace(own, shown=shown, changes=search.changes)
        if one in others or cause == one.shown[1]:  # two factors are one mistake
            return second
        first = replace(one, shown=(left, one.shown[1], f"{one.shown[2]}, besides {text},"))
        return replace(first, more=(second,))
    return own


def _alone(one: _Local, whole: Search) -> Shown:
    """The change that explains one mistake, by all that is wrong in the call: there, in all that
    its line makes, as in a loop, or in all operations of its name.
    """
    if not one.sure or one.changes is None:
        return NOTHING
    left, _ = whole.best_of(
        (*one.shown[1:], partial(whole.changed, changes)) for changes in whole.alike(one.changes)
    )
    return left
