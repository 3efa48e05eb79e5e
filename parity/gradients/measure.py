"""Gradients of both sides, call by call.

The reference's gradients arrive at a call's outputs, and at the inputs of the calls inside it. So
the gradients of its inputs and tensors, and those that it passes back to the calls inside it, are
the work of its local backward code alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from parity.capture.linen import Part
from parity.core.calls import Call, Match, above
from parity.core.measurements import Error
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.force.common import NotMeasured, Recording, Sides, within
from parity.gradients.float64 import Float64
from parity.gradients.nnx import differentiate_port
from parity.gradients.noise import small, worst_of
from parity.gradients.protocol import Backward
from parity.gradients.runs import Runs
from parity.gradients.subjects import Subjects
from parity.host.progress import Progress
from parity.judge.verdict import fail_limit


def measure_gradients(
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    sides: Sides,
    backward: Backward,
    weights: Sequence[Weight],
    store: Store,
    progress: Progress,
) -> "Measured":
    """Run both sides backward.

    `calls` are all that the reference and the port made. Calls of Linen modules, and those under a
    JAX transformation, count with the call around them.
    """
    linen = {m.ref.order for m in matches if isinstance(sides.nnx_modules[m.port.path], Part)}
    recording = Recording(_without(matches, linen), calls[0], store)
    runs = Runs(recording, weights)
    measured = Measured(runs, backward)
    try:
        progress.stage("gradients: the reference")
        runs.recorded = backward.record(recording)
        progress.stage("gradients: the port on the reference's inputs")
        runs.port = differentiate_port(
            sides.nnx_modules, sides.nnx_method, replace(recording, calls=calls[1]), runs.recorded
        )
        runs.recording = replace(recording, matches=_without(recording.matches, runs.port.hidden))
        progress.stage("gradients: the reference in float64")
        run = partial(backward.in_float64, runs.recording, runs.recorded)
        runs.float64 = Float64(run, store)
        if any(subject.doubtful for subject in measured.subjects):
            progress.stage("gradients: the reference with a few roundings more")
            runs.float64.shake()
    except NotMeasured as error:
        runs.problem = str(error)
    return measured


def _without(matches: Sequence[Match], orders: Collection[int]) -> Sequence[Match]:
    """The others, each in the nearest that is left."""
    parents = {match.ref.order: match.parent for match in matches}

    def left(order: int) -> int:
        return next((one for one in above(order, parents) if one not in orders), -1)

    return [replace(m, parent=left(m.parent)) for m in matches if m.ref.order not in orders]


class Measured:
    """The gradients of all calls by themselves, and when asked those of a call with its subtree."""

    def __init__(self, runs: Runs, backward: Backward) -> None:
        self.runs, self.subjects, self._backward = runs, Subjects(runs), backward

    def inside(self, match: Match) -> tuple[Error, float]:
        """The worst of all gradients of a call with its subtree; and the largest relative error
        that is more than rounding where nothing jumps.
        """
        order, limit, far = match.ref.order, fail_limit(match.ref.kind), 0.0
        calls, store = self.runs.recording.calls, self.runs.recording.store
        alone = Recording([match], within(calls, order), store)
        try:
            float64 = Float64(partial(self._backward.in_float64, alone, self.runs.recorded), store)
            worst, far = worst_of(self.subjects.subtree(match, float64), limit)
            if small(worst, limit):
                float64.shake()
                worst, _ = worst_of(self.subjects.subtree(match, float64), limit)
        except NotMeasured as error:
            return Error.unknown(str(error)), far
        return worst, far
