"""Record of one call that can be made again by itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from parity.core.store import Array
from parity.core.verdicts import Fault


@dataclass(frozen=True)
class Repro:
    """A call of the port as Python source, and its arrays, in the port's layout.

    `call` makes it, from `port` and the arrays `given` by name; `imports` comes before. `expected`
    is what the reference returned, by `output` and the keys of a nested one. Who made both models
    adds the rest: `weights` are the reference's of that module, `making` makes `port` with what
    is imported as `make`. Where `problem` is not empty there is no call: it says why.
    """

    fault: Fault
    call: str = ""
    imports: str = ""
    given: Mapping[str, Array] | None = None
    expected: Mapping[str, Array] | None = None
    weights: Mapping[str, Array] | None = None
    making: str = ""
    problem: str = ""
    settings: tuple[str, ...] = ()
    """Lines that configure JAX as it was."""
