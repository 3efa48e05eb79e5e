"""The backward pass of the reference: as it runs, and in float64 call by call.

Parameters have gradients for the time of a run; whatever happens they are left as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from parity.capture.recorder import join
from parity.capture.restore_torch import kept_reference
from parity.capture.torch import Method
from parity.core.exceptions import first_line
from parity.core.undo import undone
from parity.force.common import NotMeasured, Recording
from parity.force.torch import Widened, widened_modules
from parity.gradients.passes_torch import NO_GRADIENT, Forced, Natural
from parity.gradients.records import Gradients
from parity.gradients.roundings_torch import Roundings

NOT_WIDE = "not measured: the reference's gradients cannot be computed in float64"


@dataclass(frozen=True)
class TorchBackward:
    """The reference's modules by path, the method called on the root of them, and the seed of the
    gradients at its outputs.
    """

    modules: Mapping[str, torch.nn.Module]
    method: Method
    seed: int

    def record(self, recording: Recording) -> Gradients:
        """Gradients of one run, in the reference's own type.

        Raises:
            NotMeasured: it has none.
        """
        module = self.modules[recording.root.ref.path]
        run = Natural(module, self.method, recording)
        try:
            with torch.enable_grad(), kept_reference(module), _all_required(module):
                return run.gradients(self.seed)
        except NotMeasured:
            raise
        except Exception as error:  # code that autograd refuses fails in ways of its own
            raise NotMeasured(f"{NO_GRADIENT}: {first_line(error)}") from error

    def in_float64(self, recording: Recording, recorded: Gradients, sample: int = 0) -> Gradients:
        """Gradients of one run in float64, every matched call by itself: its inputs and the
        gradients at its outputs are the recorded ones.

        With a number for `sample`, all results of operations are changed by a few roundings.

        Raises:
            NotMeasured: it does not run in float64.
        """
        root = recording.root.ref.path
        module = self.modules[root]
        run = Forced(module, self.method, recording)
        rounded = Roundings(sample) if sample else nullcontext()
        try:
            with (
                torch.enable_grad(),
                kept_reference(module),
                _widened(module, root) as widened,
                rounded,
            ):
                return run.forced(recorded, widened)
        except Exception as error:  # code written for float32 fails in ways of its own
            raise NotMeasured(f"{NOT_WIDE}: {first_line(error)}") from error


@contextmanager
def _all_required(module: torch.nn.Module) -> Iterator[None]:
    """In the block every parameter has a gradient."""
    before = [(one, one.requires_grad) for one in module.parameters() if one.is_floating_point()]

    def undo() -> None:
        for one, required in before:
            one.requires_grad_(required)

    with undone(undo):
        for one, _ in before:
            one.requires_grad_(True)
        yield


@contextmanager
def _widened(module: torch.nn.Module, prefix: str) -> Iterator[Sequence[tuple[str, Widened]]]:
    """In the block the module is float64: its parameters by name.

    One that modules share has one name, and is there once for each of them.
    """
    names = {id(one): join(prefix, name) for name, one in module.named_parameters()}
    with widened_modules(module.modules()) as widened:
        found = [(names[id(one.own)], one) for one in widened if id(one.own) in names]
        yield [(name, one) for name, one in found if one.wide.is_floating_point()]
