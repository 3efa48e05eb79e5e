"""Readings of arrays that the forced run tells: there all calls return what the reference's do.

Behind a fault the values of the free run agree in no reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parity.align.readings import Values
from parity.core.calls import LeafMatch, Match, Reading
from parity.core.store import Buffer
from parity.measure.free import Key

Readings = Mapping[tuple[bool, Key], Reading | None]
"""Readings of outputs, and where the first is true of inputs."""


def told(leaf: LeafMatch, port: Buffer, values: Values) -> Reading | None:
    """The reading in which the port's array agrees; that of the leaf if it does, or none does."""
    assert leaf.port is not None
    own = replace(leaf.port, buffer=port)
    if values.agree_in(leaf.ref, own, leaf.reading):
        return leaf.reading
    return next(values.agreeing(leaf.ref, own), leaf.reading)


def read_as(matches: Sequence[Match], readings: Readings) -> Sequence[Match]:
    """The matches with these readings."""
    if not readings:
        return matches

    def read(given: bool, match: Match, leaf: LeafMatch) -> LeafMatch:
        key = given, (match.ref.order, leaf.ref.name)
        return replace(leaf, reading=readings[key]) if key in readings else leaf

    return [
        replace(
            match,
            inputs=tuple(read(True, match, leaf) for leaf in match.inputs),
            outputs=tuple(read(False, match, leaf) for leaf in match.outputs),
        )
        for match in matches
    ]
