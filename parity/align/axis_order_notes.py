"""Arrays of the called model that the port seems to take or return in another order of axes.

A caller relies on the order: where nothing but shape and values speaks for it, a report says so.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from parity.capture.layout import channel_last, channel_second, known
from parity.core.calls import Call, Leaf, LeafMatch, Match
from parity.core.globs import path_name

NO_LAYER = "no layer of the reference has its channels at axis 1"


def _of_pytorch(leaf: Leaf) -> tuple[int, ...]:
    """The shape that PyTorch's array has of which axis 1 was moved to the end."""
    shape = leaf.buffer.shape if leaf.buffer else ()
    return tuple(shape[axis] for axis in channel_second(len(shape))) if shape else ()


def _large(leaf: Leaf) -> bool:
    return leaf.buffer is not None and len(leaf.buffer.shape) > 2


def order_notes(matches: Iterable[Match], calls: Sequence[Call]) -> Iterator[str]:
    """Sentences on inputs and outputs whose order neither layers nor, of outputs, inputs confirm.

    `calls` are all of the reference's. If the last layer returns an array of an output's shape with
    its channels last, as a `Linear`, that confirms that this has them there too.
    """
    leaves = [leaf for call in calls for leaf in (*call.inputs, *call.outputs)]
    buffers = [leaf.buffer for leaf in leaves if leaf.moved and leaf.sure]
    second = any(buffer and len(buffer.shape) == 3 for buffer in buffers)
    layers = [leaf for call in calls for leaf in call.outputs if leaf.sure and _large(leaf)]
    kept = {leaf.buffer.digest for leaf in leaves if leaf.buffer and leaf.sure and not leaf.moved}
    ends_last = {x.buffer.shape for x in layers[-1:] if x.buffer and not x.moved}
    for match in matches:
        given = [leaf.reading.axes for leaf in match.inputs if leaf.reading]
        last = any(leaf.ref.moved and leaf.reading is None for leaf in match.inputs)
        for leaf in match.inputs if match.ref.parent == -1 else ():
            if _by_values_alone(leaf, kept):
                name = f"{path_name(match.ref.path)}#{leaf.ref.name}"
                yield (
                    f"the port returns the same only if it is given {name} with the axes of the"
                    " reference: its sizes are equal, so try others or say layout="
                    f"{{{name!r}: 'as_is'}}"
                )
        for leaf in match.outputs if match.ref.parent == -1 else ():
            axes = leaf.reading.axes if leaf.reading else ()
            confirmed = not last if leaf.ref.moved else second
            confirmed |= leaf.ref.moved and _of_pytorch(leaf.ref) in ends_last
            if axes != tuple(range(len(axes))) and not (confirmed or axes in given):
                own = channel_last(len(axes)) if leaf.ref.moved else range(len(axes))
                order = tuple(own[axis] for axis in axes)
                why = "the port takes its channels last" if leaf.ref.moved else NO_LAYER
                yield (
                    f"the port returns {path_name(match.ref.path)}#{leaf.ref.name} with axes "
                    f"in the order {order} of PyTorch's, by its shape and values, though {why}"
                )


def _by_values_alone(leaf: LeafMatch, kept: Collection[bytes]) -> bool:
    """True if the port takes an array as the reference does, and neither its shape nor a layer that
    it is given to says so; those get the arrays `kept`.
    """
    given = leaf.port.buffer if leaf.port else None
    turned = leaf.ref.moved and leaf.reading is not None and not known(leaf.ref)
    return turned and given is not None and given.digest not in kept
