"""Gradients of both sides, call by call.

The reference's gradients arrive at a call's outputs, and at the inputs of the calls inside it. So
the gradients of its inputs and tensors, and those that it passes back to the calls inside it, are
the work of its local backward code alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from parity.capture.linen import Part
from parity.core.calls import Call, Match, without
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

    `calls` are all that the reference and the port made. Taps, calls of Linen modules, and those
    under a JAX transformation count with the call around them.
    """
    apart = {
        m.ref.order
        for m in matches
        if m.ref.tapped or m.port.tapped or isinstance(sides.nnx_modules[m.port.path], Part)
    }
    recording = Recording(without(matches, apart), calls[0], store)
    try:
        progress.stage("gradients: the reference")
        recorded = backward.record(recording)
        progress.stage("gradients: the port on the reference's inputs")
        port = differentiate_port(
            sides.nnx_modules, sides.nnx_method, replace(recording, calls=calls[1]), recorded
        )
        if port.hidden:
            recording = replace(recording, matches=without(recording.matches, port.hidden))
            recorded = backward.record(recording)

        def run(sample: int) -> Gradients:
            more = " with a few roundings more" if sample else ""
            progress.stage(f"gradients: the reference in float64{more}")
            return backward.in_float64(recording, recorded, sample)

        return Subjects(recording, weights, Float64(run, store), recorded, port)
    except NotMeasured as error:
        none = Float64(lambda _: Gradients(), store)
        return Subjects(recording, weights, none, problem=str(error))
