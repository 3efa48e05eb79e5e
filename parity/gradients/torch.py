"""The backward pass of the reference: as it runs, and in float64 call by call."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from parity.capture.restore_torch import kept_reference
from parity.capture.torch import Method
from parity.core.exceptions import first_line
from parity.core.tree import statics
from parity.force.common import NotMeasured, Recording
from parity.force.roundings_torch import Roundings
from parity.force.torch import widened_modules
from parity.gradients.passes_torch import NO_GRADIENT, Forced, Natural
from parity.gradients.records import Gradients

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
        objects = statics(recording.root.ref.arguments)
        held = widened_modules(module.modules(), wide=False)
        try:
            with torch.enable_grad(), kept_reference(module, *objects), held as parameters:
                return Natural(module, self.method, recording, parameters).gradients(self.seed)
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
        module = self.modules[recording.root.ref.path]
        objects = statics(recording.root.ref.arguments)
        widened = widened_modules(module.modules())
        rounded = Roundings(sample) if sample else nullcontext()
        try:
            with torch.enable_grad(), kept_reference(module, *objects), widened as held, rounded:
                return Forced(module, self.method, recording, held).forced(recorded)
        except Exception as error:  # code written for float32 fails in ways of its own
            raise NotMeasured(f"{NOT_WIDE}: {first_line(error)}") from error
