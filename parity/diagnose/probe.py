"""The definition of a probe: it changes operations of the reference as a port may have.

A probe is a function of one operation that a call makes by itself. It yields what a port may have
otherwise there: the cause, what is changed in words, and the change. One that makes the reference's
float64 run give what the port gave explains the error. Adding a probe is one function in one of the
files beside this one, and one test.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.diagnose.replay import Change, Operation

NORMS = ("group_norm", "layer_norm", "batch_norm", "instance_norm", "rms_norm", "normalize")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
POOLS = ("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
MATRIX = ("linear", "matmul", "rmatmul", "bmm", "mm", "addmm", "baddbmm", "einsum")
PRODUCTS = (*CONVOLUTIONS, *TRANSPOSED, *MATRIX, "scaled_dot_product_attention")

Ways = Iterator[tuple[str, str, Change]]
"""The cause, what is changed, and how, of one way after another to do an operation wrong."""


@dataclass(frozen=True)
class Trial:
    """One changed run: the cause it would show, what was changed, and how, by place."""

    cause: str
    text: str
    changes: Mapping[int, Change]


Probe = Callable[[Sequence[Operation]], Iterator[Trial]]
WHOLE: set[Probe] = set()
PROBES: list[Probe] = []
"""All of them, as `diagnose` imports their files: where several explain an error alike, the first
is believed."""


def probe(*names: str, each: bool = False) -> Callable[[Callable[[Operation], Ways]], Probe]:
    """Register a probe of the operations of these names.

    Its changes are tried in all of one name, in all together and then in each; with `each` only in
    each.
    """

    def register(function: Callable[[Operation], Ways]) -> Probe:
        @functools.wraps(function)
        def trials(operations: Sequence[Operation]) -> Iterator[Trial]:
            found = [operation for operation in operations if operation.name in names]
            kinds = dict.fromkeys(operation.name for operation in found)
            groups = [] if each else [[x for x in found if x.name == name] for name in kinds]
            groups += [found] if len(kinds) > 1 and not each else []
            if each or 1 < len(found) <= 6:
                groups += [[operation] for operation in found]
            for group in groups:
                others = list(dict.fromkeys(x.name for x in group if x.name != group[0].name))
                also = f", and in {', '.join(others)}" if others else ""
                for cause, text, change in function(group[0]):
                    changes = {operation.place: change for operation in group}
                    yield Trial(cause, text + also, changes)

        return probe_of_all(trials)

    return register


def probe_of_all(function: Probe) -> Probe:
    """Register a probe whose trials each change several operations, and each otherwise."""
    PROBES.append(function)
    return function


def probe_of_flow(function: Probe) -> Probe:
    """Register such a probe that goes by what flows where in the whole call."""
    WHOLE.add(function)
    PROBES.append(function)
    return function


def again(**arguments: Any) -> Change:
    """The operation with other arguments."""
    return lambda operation: operation.again(**arguments)


def first_argument(operation: Operation) -> Any:
    """The first argument of the operation in the place of its result."""
    return operation.subject.clone()


def as_tuple(value: Any, n: int) -> tuple[int, ...]:
    """A setting for `n` axes that may be given once for all."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * n if len(values) == 1 else values
