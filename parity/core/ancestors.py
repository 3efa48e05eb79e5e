"""The calls around a call."""

from collections.abc import Iterator, Mapping


def ancestors(order: int, parents: Mapping[int, int]) -> Iterator[int]:
    """The calls around the call `order`, the nearest first.

    `parents` has the enclosing call of each call by `order`, -1 where there is none.
    """
    while (order := parents[order]) != -1:
        yield order
