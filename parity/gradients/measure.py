"""Gradients of both sides, call by call.

The reference's gradients arrive at a call's outputs, and at the inputs of the calls inside it. So
the gradients of its inputs and tensors, and those that it passes back to the calls inside it, are
the work of its local backward code alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from parity.capture.linen import Part
from parity.core.calls import Call, Match, above
from parity.core.store import Store
from parity.core.tensors import Weight
from parity.force.common import NotMeasured, Recording, Sides
from parity.gradients.float64 import Float64
from parity.gradients.nnx import differentiate_port
from parity.gradients.records import Backward, Gradients
from parity.gradients.subjects import Subjects
from parity.host.progress import Progress


def measure_gradients(
    matches: Sequence[Match],
    calls: tuple[Sequence[Call], Sequence[Call]],
    sides: Sides,
    backward: Backward,
    weights: Sequence[Weight],
    store: Store,
    progress: Progress,
) -> Subjects:
    """Gradients of both sides, which are run backward.

    `calls` are all that the reference and the port made. Calls of Linen modules, and those under a
    JAX transformation, count with the call around them.
    """
    linen = {m.ref.order for m in matches if isinstance(sides.nnx_modules[m.port.path], Part)}
    recording = Recording(_without(matches, linen), calls[0], store)
    try:
        progress.stage("gradients: the reference")
        recorded = backward.record(recording)
        progress.stage("gradients: the port on the reference's inputs")
        port = differentiate_port(
            sides.nnx_modules, sides.nnx_method, replace(recording, calls=calls[1]), recorded
        )
        if port.hidden:
            recording = replace(recording, matches=_without(recording.matches, port.hidden))
            recorded = backward.record(recording)

        def run(sample: int) -> Gradients:
            more = " with a few roundings more" if sample else ""
            progress.stage(f"gradients: the reference in float64{more}")
            return backward.in_float64(recording, recorded, sample)

        return Subjects(recording, weights, Float64(run, store), recorded, port)
    except NotMeasured as error:
        none = Float64(lambda _: Gradients(), store)
        return Subjects(recording, weights, none, problem=str(error))


def _without(matches: Sequence[Match], orders: Collection[int]) -> Sequence[Match]:
    """The others, each in the nearest that is left."""
    parents = {match.ref.order: match.parent for match in matches}

    def left(order: int) -> int:
        return next((one for one in above(order, parents) if one not in orders), -1)

    return [replace(m, parent=left(m.parent)) for m in matches if m.ref.order not in orders]
