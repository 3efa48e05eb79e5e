"""Outputs of the called model that the port seems to return with their axes in another order.

A caller relies on the order: where nothing but shape and values speaks for it, a report says so.
"""

from collections.abc import Iterable, Iterator, Sequence

from parity.capture.layout import channel_last, channel_second
from parity.core.calls import Call, Leaf, Match
from parity.core.globs import path_name

NO_LAYER = "no layer of the reference has its channels at axis 1"


def _of_pytorch(leaf: Leaf) -> tuple[int, ...]:
    """The shape that PyTorch's array has of which axis 1 was moved to the end."""
    shape = leaf.buffer.shape if leaf.buffer else ()
    return tuple(shape[axis] for axis in channel_second(len(shape))) if shape else ()


def _large(leaf: Leaf) -> bool:
    return leaf.buffer is not None and len(leaf.buffer.shape) > 2


def order_notes(matches: Iterable[Match], calls: Sequence[Call]) -> Iterator[str]:
    """Sentences on outputs whose order neither the inputs nor the layers confirm.

    `calls` are all of the reference's. If the last layer returns an array of an output's shape with
    its channels last, as a `Linear`, that confirms that this has them there too.
    """
    leaves = [leaf for call in calls for leaf in (*call.inputs, *call.outputs)]
    buffers = [leaf.buffer for leaf in leaves if leaf.moved and leaf.sure]
    second = any(buffer and len(buffer.shape) == 3 for buffer in buffers)
    layers = [leaf for call in calls for leaf in call.outputs if leaf.sure and _large(leaf)]
    ends_last = {x.buffer.shape for x in layers[-1:] if x.buffer and not x.moved}
    for match in matches:
        given = [leaf.reading.axes for leaf in match.inputs if leaf.reading]
        last = any(leaf.ref.moved and leaf.reading is None for leaf in match.inputs)
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
