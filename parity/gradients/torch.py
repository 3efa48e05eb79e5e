"""The backward pass of the reference: as it runs, and in float64 call by call.

Parameters have gradients for the time of a run; whatever happens they are left as they were.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from parity.capture.recorder import join
from parity.capture.restore_torch import kept_reference
from parity.capture.torch import Method
from parity.core.exceptions import first_line
from parity.core.undo import undone
from parity.force.common import NotMeasured, Recording
from parity.force.torch import widened_modules
from parity.gradients.passes_torch import NO_GRADIENT, Forced, Natural
from parity.gradients.protocol import Gradients, WideGradients
from parity.gradients.roundings_torch import Shake

NOT_WIDE = "not measured: the reference's gradients cannot be computed in float64"


@dataclass(frozen=True)
class TorchBackward:
    """The reference's modules by path, the method called on the root of them, and the seed of the
    gradients at its outputs: a `Backward`.
    """

    modules: Mapping[str, torch.nn.Module]
    method: Method
    seed: int

    def record(self, recording: Recording) -> Gradients:
        """Run it once, with autograd on."""
        module = self.modules[recording.root.ref.path]
        run = Natural(module, recording)
        try:
            with torch.enable_grad(), kept_reference(module), _all_required(module):
                return run.gradients(self.method, self.seed)
        except NotMeasured:
            raise
        except Exception as error:  # code that autograd refuses fails in ways of its own
            raise NotMeasured(f"{NO_GRADIENT}: {first_line(error)}") from error

    def in_float64(
        self, recording: Recording, recorded: Gradients, shaken: int = 0
    ) -> WideGradients:
        """Widen all of it, and run it once."""
        root = recording.root.ref
        method = self.method if root.parent == -1 else "__call__"
        module, shake = self.modules[root.path], Shake(shaken)
        run = Forced(module, recording, recorded, shake)
        widened = _widened(module, root.path, shake)
        try:
            with torch.enable_grad(), kept_reference(module), widened as copies:
                return run.gradients(method, copies)
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
def _widened(
    module: torch.nn.Module, prefix: str, shake: Shake
) -> Iterator[Mapping[str, Sequence[torch.Tensor]]]:
    """In the block the module is float64: the copies of each of its parameters, by its name.

    A parameter that modules share has one name, and a copy in each of them.
    """
    names = {id(one): join(prefix, name) for name, one in module.named_parameters()}
    with widened_modules(module.modules()) as widened:
        copies: dict[str, list[torch.Tensor]] = defaultdict(list)
        for one in widened:
            if id(one.own) in names and one.wide.is_floating_point():
                with torch.no_grad():
                    one.wide.copy_(shake(one.wide, one.own.dtype))
                copies[names[id(one.own)]].append(one.wide.requires_grad_(True))
        yield copies
