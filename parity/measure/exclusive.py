"""Exclusive error: that of a module's local computation, whatever goes on around or inside it.

Of a container, the inputs that it passes to its children count too: these return the reference's
outputs, so a mistake before them does not show in what the container returns.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from parity.align.readings import Values
from parity.core.arrays import Array, as_read, comparable
from parity.core.calls import Call, LeafMatch, Match, Reading
from parity.core.limits import fail_limit
from parity.core.measurements import ChildInput, Error
from parity.core.metrics import zero_signs
from parity.core.problems import not_measured
from parity.core.store import Buffer, Store, digest
from parity.core.thread_pool import Background
from parity.force.common import Arrays, Recording, Sides, reference, same, unforced
from parity.force.nnx import Forced, force_port
from parity.host.progress import Progress
from parity.measure import whole
from parity.measure.channels import suspicious
from parity.measure.free import Key
from parity.measure.noise import bounded, rounded_alone, score
from parity.measure.reread import Readings, read_as, told

SLACK = 1.5
"""How far above its limit R may be, at worst, where the float64 run is left out. PyTorch's own
error may be several roundings, and a correct port is that far from it too. Mistakes start at 300
(see `limits`)."""

OTHER_ZEROS = "zeros have the other sign, where the reference only moves data"

AGAIN = 3
"""How many times the forced run is made again, each time with what the one before told of layouts:
what is made of an array that is read wrongly may be told only then."""

NOT_REPEATABLE = "not measured: its arguments hold a module or random streams under jit"
NO_CALL = "not measured: the port did not make this call again on the reference's inputs"


@dataclass(frozen=True)
class Exclusives:
    """Errors by call and output leaf; inputs that containers passed to children, by their `order`.

    `outputs` and `received` are what the port made of the reference's inputs, as far as it is not
    near the reference's: what calls returned, and what their parents passed to them. `handed_on`
    says of the latter which call returned it, where the reference's returns no such thing. `calls`
    are the port's that may have been given something else that only the port has than in its own
    run.
    """

    errors: Mapping[Key, Error]
    child_inputs: Mapping[int, tuple[ChildInput, ...]]
    outputs: Mapping[Key, Buffer]
    received: Mapping[Key, Buffer]
    handed_on: Mapping[Key, int] = field(default_factory=dict)
    calls: Mapping[int, Call] = field(default_factory=dict)
    readings: Readings = field(default_factory=dict)

    def as_forced(self, matches: Sequence[Match]) -> Sequence[Match]:
        """The matches, with what only the port has as it is where all else is the reference's, and
        arrays as they are read there.
        """
        matches = read_as(matches, self.readings)
        return [replace(x, port=self.calls.get(x.ref.order, x.port)) for x in matches]

    def failing(self, matches: Sequence[Match]) -> frozenset[int]:
        """The calls out of their limit, by what they return or pass to their children."""
        limits = {match.ref.order: fail_limit(match.family) for match in matches}
        errors = [(order, error) for (order, _), error in self.errors.items()]
        errors += [(n, one.error) for n, found in self.child_inputs.items() for one in found]
        return frozenset(order for order, error in errors if error.fails(limits[order]))


def measure_exclusive(
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    sides: Sides,
    store: Store,
    progress: Progress,
    *,
    floor: bool = False,
    exact: bool = True,
) -> Exclusives:
    """Measure every call, in one run of each side.

    `calls` are all that the reference and the port made. Where the values of the free run did not
    tell how an array is to be read, those of the forced run may: then it is made again. Calls of
    the reference run in float64 where the relative error of a leaf does not bound its R under
    `SLACK` times its limit; with `floor` all do. If only the distance from float64 counts, and not
    that the port is `exact`, a number that the reference rounds to fewer bits is none of its
    results.
    """
    if not matches or matches[-1].ref.parent != -1:
        return Exclusives({}, {}, {}, {})
    work = _Work(matches, store, floor, progress)
    forced = _run_port(Recording(matches, calls[1], store), sides, work)
    readings: Readings = {}
    for _ in range(AGAIN):
        if not work.readings.keys() - readings.keys():
            break
        readings = {**readings, **work.readings}
        matches = read_as(matches, readings)
        work = _Work(matches, store, floor, progress)
        forced = _run_port(Recording(matches, calls[1], store), sides, work)
    unknown: Mapping[int, str] = {}
    of_ref = Recording(matches, calls[0], store, work.narrowed.add if exact else lambda order: None)
    if work.wanted:
        progress.stage("exclusive error: the reference in float64", len(matches))
        with Background(threads=2) as background:
            listener = partial(work.reference, background)
            unknown = sides.reference.own(of_ref, listener, work.wanted)
    if work.seen and not unknown:
        progress.stage("exclusive error: where rounding decides whole numbers", whole.SAMPLES)
        for sample in range(1, whole.SAMPLES + 1):
            sides.reference.own(of_ref, work.note, work.wanted, sample)
            progress.advance()
        work.without_decided()
    result = work.result(forced.problems, unknown)
    return replace(result, calls=forced.calls, readings=readings)


def _run_port(recording: Recording, sides: Sides, work: "_Work") -> Forced:
    matches, store = recording.matches, recording.store
    work.progress.stage("exclusive error: the port on the reference's inputs", len(matches))
    with Background(threads=2) as background:
        if len(matches) == 1 and all(same(leaf) for leaf in matches[0].inputs if comparable(leaf)):
            # a single call on the reference's inputs: nothing to replace
            outputs = {x.name: store.get(x.buffer) for x in matches[0].port.outputs if x.buffer}
            work.port(background, matches[0], {}, outputs)
            return Forced({}, {})
        if matches[-1].port.arguments is None:
            return Forced({match.ref.order: NOT_REPEATABLE for match in matches}, {})
        return force_port(sides, recording, partial(work.port, background))


@dataclass
class _Work:
    """Measurements so far."""

    matches: Sequence[Match]
    store: Store
    floor: bool
    progress: Progress
    errors: dict[Key, Error] = field(default_factory=dict)
    child_inputs: dict[Key, ChildInput] = field(default_factory=dict)
    outputs: dict[Key, Buffer] = field(default_factory=dict)
    received: dict[Key, Buffer] = field(default_factory=dict)
    beside: dict[bytes, int] = field(default_factory=dict)
    """What calls of the port return that the reference's do not, by the digest of the values."""
    handed_on: dict[Key, int] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    """The calls that need a float64 run to be judged."""
    seen: dict[tuple[bool, Key], list[Array]] = field(default_factory=dict)
    """Whole numbers that differ, as the reference has them in other runs: of outputs, and where the
    first is true of inputs."""

    readings: dict[tuple[bool, Key], Reading | None] = field(default_factory=dict)
    """Readings in which arrays agree, and not in those that the free run told."""
    narrowed: set[int] = field(default_factory=set)
    """The calls in whose own code the reference rounds to fewer bits."""

    def port(self, background: Background, match: Match, received: Arrays, outputs: Arrays) -> None:
        """Measure what the port did in one call, beside its run."""
        order = match.ref.order
        for leaf in _both_have(match.inputs, received):
            array = received[_name(leaf)]
            assert leaf.ref.buffer is not None
            if leaf.reading or digest(array) != leaf.ref.buffer.digest:
                key = order, leaf.ref.name
                self.received[key] = self.store.put(array)
                self._read(True, match, leaf, self.received[key])
                self.wanted.add(match.parent)
                if self.received[key].digest in self.beside:
                    self.handed_on[key] = self.beside[self.received[key].digest]
        known = {_name(leaf) for leaf in match.outputs if leaf.port}
        self.beside |= {digest(x): order for name, x in outputs.items() if name not in known}
        for leaf in [] if unforced(match) else _both_have(match.outputs, outputs):
            background.submit(self._without_float64, match, leaf, outputs[_name(leaf)])
        self.progress.advance()

    def _without_float64(self, match: Match, leaf: LeafMatch, port: Array) -> None:
        key, ref = (match.ref.order, leaf.ref.name), reference(leaf, self.store)
        error, near = score(ref, port), False
        if not self.floor:
            enough = SLACK * fail_limit(match.family)
            near = error.mae == 0 or (
                bounded(error.rel_l2, enough, ref.dtype) and not suspicious(ref, port)
            )
        signs = error.mae == 0 and self._other_zeros(match, ref, port)
        self.errors[key] = replace(error, bounded=near, part=OTHER_ZEROS if signs else "")
        if not near:
            self.outputs[key] = self.store.put(port)
            self._read(False, match, leaf, self.outputs[key])
            self.wanted.add(match.ref.order)

    def _read(self, given: bool, match: Match, leaf: LeafMatch, port: Buffer) -> None:
        values = Values(self.store, heads=match.ref.parent != -1)
        reading = told(leaf, port, values)
        if reading != leaf.reading:
            self.readings[given, (match.ref.order, leaf.ref.name)] = reading

    def _other_zeros(self, match: Match, ref: Array, port: Array) -> bool:
        """True if the reference moves data, and zeros that it got or made have the other sign.

        The sign of what a product makes of a negative number and 0 means nothing, and neither does
        that of a maximum of zeros.
        """
        of_ref, of_port = zero_signs(ref), zero_signs(port)
        if np.array_equal(of_ref, of_port) or not self._only_moves(ref, match.ref, match.ref.order):
            return False
        given = self._sources(match.ref, match.ref.order, None)
        whole = [one for one in given if np.count_nonzero(one) == np.count_nonzero(ref)]
        constant = len({*of_ref}) == len({*of_port}) == 1
        return constant or any(zero_signs(one).any() for one in whole)

    def reference(
        self, background: Background, match: Match, received: Arrays, outputs: Arrays
    ) -> None:
        """Measure one call again, against what the reference did in float64."""
        order = match.ref.order
        for leaf in match.outputs:
            if (order, leaf.ref.name) in self.outputs and leaf.ref.name in outputs:
                wide = as_read(outputs[leaf.ref.name], leaf.reading)
                background.submit(self._output, match, leaf, wide, order in self.narrowed)
        for leaf in match.inputs:
            if (order, leaf.ref.name) in self.received:
                array = received.get(leaf.ref.name)
                given = None if array is None else as_read(array, leaf.reading)
                background.submit(self._input, match, leaf, given, match.parent in self.narrowed)
        self.progress.advance()
        self.note(match, received, outputs)

    def note(self, match: Match, received: Arrays, outputs: Arrays) -> None:
        """Keep the whole numbers of a further run of the reference, where the port's differ."""
        sides = (match.outputs, outputs, self.outputs), (match.inputs, received, self.received)
        for at, (leaves, wide, port) in enumerate(sides):
            for leaf in leaves:
                key, buffer = (match.ref.order, leaf.ref.name), leaf.ref.buffer
                exact = buffer and buffer.dtype.kind in "biu" and key in port and key[1] in wide
                if exact and not np.array_equal(
                    reference(leaf, self.store), self.store.get(port[key])
                ):
                    array = as_read(np.asarray(wide[key[1]]), leaf.reading)
                    self.seen.setdefault((bool(at), key), []).append(array)

    def without_decided(self) -> None:
        """Measure whole numbers again, without the entries that rounding decides."""
        for (given, key), seen in self.seen.items():
            match = self._by_order[key[0]]
            leaf = next(x for x in (match.outputs, match.inputs)[given] if x.ref.name == key[1])
            ref, port = reference(leaf, self.store), (self.outputs, self.received)[given][key]
            around = self._by_order[match.parent] if given else match
            sources = self._sources(around.ref, around.ref.order, key[0] if given else None)
            error = score(ref, whole.decided(ref, self.store.get(port), seen, sources))
            if not given:
                self.errors[key] = error
            elif key in self.child_inputs:
                error = replace(error, moved=True)
                self.child_inputs[key] = replace(self.child_inputs[key], error=error)

    def _scored(self, ref: Array, port: Array, wide: Array | None, narrowed: bool) -> Error:
        error = score(ref, port, wide)
        if wide is None or not narrowed or error.nonfinite:
            return error
        return replace(error, problem=error.problem or rounded_alone(ref, port, wide))

    def _output(self, match: Match, leaf: LeafMatch, wide: Array, narrowed: bool) -> None:
        key, ref = (match.ref.order, leaf.ref.name), reference(leaf, self.store)
        port = self.store.get(self.outputs[key])
        error = self._scored(ref, port, wide, narrowed)
        if error.moved and error.mae > 0:
            error = replace(error, moved=self._only_moves(ref, match.ref, match.ref.order))
        self.errors[key] = replace(error, part=error.part or self.errors[key].part)

    def _input(self, match: Match, leaf: LeafMatch, wide: Array | None, narrowed: bool) -> None:
        key, ref = (match.ref.order, leaf.ref.name), reference(leaf, self.store)
        error = self._scored(ref, self.store.get(self.received[key]), wide, narrowed)
        if ref.dtype.kind in "biu":
            error = replace(error, moved=True)  # exact whatever was computed
        elif error.moved and error.mae > 0:
            parent = self._by_order[match.parent].ref
            moved = self._only_moves(ref, parent, match.parent, before=match.ref.order)
            error = replace(error, moved=moved)
        elif np.isnan(error.r) and not error.problem and not self._harmless(error, match, ref):
            text = "not measured: the reference did not pass it to the child again"
            error = replace(error, problem=not_measured(text))
        after = self._before.get(match.ref.order, "")
        order, leaf_name = key
        child = ChildInput(match.parent, order, match.ref.path, leaf_name, after, error)
        self.child_inputs[key] = child

    def _harmless(self, error: Error, match: Match, ref: Array) -> bool:
        limit = 1.0 if self.floor else fail_limit(match.family)
        return error.nonfinite > 0 or error.mae == 0 or bounded(error.rel_l2, limit, ref.dtype)

    @cached_property
    def _by_order(self) -> Mapping[int, Match]:
        return {match.ref.order: match for match in self.matches}

    @cached_property
    def _before(self) -> Mapping[int, str]:
        """The path of the call inside the same parent that came before each."""
        latest: dict[int, str] = {}
        found = {}
        for match in self.matches:
            found[match.ref.order] = latest.get(match.parent, "")
            latest[match.parent] = match.ref.path
        return found

    def _only_moves(self, result: Array, call: Call, order: int, before: int | None = None) -> bool:
        """True if every value of `result` is 0 or one that `call` was given or got from inside.

        Without rounding alone is not enough: a mean of small whole numbers is exact too.
        """
        sources = [one.ravel() for one in self._sources(call, order, before)]
        known = np.unique(np.concatenate([np.zeros(1, result.dtype), *sources]))
        return bool(np.isin(result, known).all())

    def _sources(self, call: Call, order: int, before: int | None) -> list[Array]:
        """What a call was given, and got from the calls inside it."""
        inside = [m.ref for m in self.matches if m.parent == order]
        inside = [one for one in inside if before is None or one.order < before]
        leaves = [*call.inputs, *(leaf for child in inside for leaf in child.outputs)]
        return [self.store.get(leaf.buffer) for leaf in leaves if leaf.buffer]

    def result(self, problems: Mapping[int, str], unknown: Mapping[int, str]) -> Exclusives:
        """The errors of all calls.

        By the `order` of a call, `problems` say why the port's could not be made again, `unknown`
        why the reference's is not known in float64.
        """
        for match, leaf in ((m, leaf) for m in self.matches for leaf in m.outputs):
            order, key = match.ref.order, (match.ref.order, leaf.ref.name)
            if comparable(leaf) and key not in self.errors:
                why = unforced(match) or problems.get(order) or NO_CALL
                self.errors[key] = Error.unknown(why)
            elif unknown.get(order) and key in self.outputs and not self.errors[key].problem:
                self.errors[key] = self._unmeasured(key, unknown[order])
        for order, name in self.received.keys() - self.child_inputs.keys():
            parent = self._by_order[order].parent
            why = unknown.get(parent, f"not measured: whether child input {name!r} is right")
            for leaf in filter(comparable, self._by_order[parent].outputs if parent != -1 else ()):
                key = (parent, leaf.ref.name)
                self.errors[key] = self._unmeasured(key, why)
        by_parent: dict[int, tuple[ChildInput, ...]] = defaultdict(tuple)
        for _, found in sorted(self.child_inputs.items()):
            by_parent[found.parent] += (found,)
        arrays = self.outputs, self.received
        return Exclusives(self.errors, dict(by_parent), *arrays, self.handed_on)

    def _unmeasured(self, key: Key, why: str) -> Error:
        return replace(self.errors[key], problem=not_measured(why))


def _both_have(leaves: Sequence[LeafMatch], arrays: Arrays) -> list[LeafMatch]:
    return [leaf for leaf in leaves if comparable(leaf) and _name(leaf) in arrays]


def _name(leaf: LeafMatch) -> str:
    assert leaf.port is not None
    return leaf.port.name
