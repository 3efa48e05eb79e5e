"""The definition of a probe: it changes operations of the reference as a port may have.

A probe is a function of the operations that a call makes by itself. It yields trials; one that
makes the reference's float64 run give what the port gave explains the error. Adding a probe is one
function in one of the files beside this one, and one test.
"""

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


@dataclass(frozen=True)
class Trial:
    """One changed run: the cause it would show, what was changed, and how, by place."""

    cause: str
    text: str
    changes: Mapping[int, Change]


Probe = Callable[[Sequence[Operation]], Iterator[Trial]]
REGISTERED: list[Probe] = []
"""All probes of the files that are imported; `all_probes` has their order."""


def probe(function: Probe) -> Probe:
    """Register a probe."""
    REGISTERED.append(function)
    return function


def together_and_alone(
    operations: Sequence[Operation], names: Sequence[str]
) -> Iterator[Sequence[Operation]]:
    """All operations of these names, then each by itself."""
    found = [operation for operation in operations if operation.name in names]
    if found:
        yield found
    if 1 < len(found) <= 6:
        yield from ([operation] for operation in found)


def all_of(group: Sequence[Operation], change: Change) -> dict[int, Change]:
    """The same change for each of the operations."""
    return {operation.place: change for operation in group}


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
