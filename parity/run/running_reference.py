"""The reference that runs: recorded anew, run in float64, and changed to find out why."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd

from parity.capture import torch as capture_torch
from parity.capture.arguments import port_arguments, returning
from parity.capture.random_torch import with_random
from parity.capture.recorder import Subtree, join
from parity.capture.restore_torch import seeded
from parity.core.calls import ModuleInfo, Trace
from parity.core.globs import path_name
from parity.core.pair import Case
from parity.core.store import Store
from parity.core.tensors import Array, Tensor
from parity.diagnose.diagnose import diagnose, keep
from parity.force.float64 import TorchModules
from parity.host import environment
from parity.run.protocols import Arguments, Inside, Layout

if TYPE_CHECKING:
    from parity.gradients.torch import TorchBackward


class RunningReference:
    """A PyTorch module as the reference of a comparison; its random layers start from `seed`."""

    def __init__(self, root: torch.nn.Module, seed: int = 0) -> None:
        capture_torch.check_scripted(root)
        capture_torch.check_given(root, (), {})
        self._root, self._seed = root, seed

    def environment(self) -> Mapping[str, Any]:
        """This machine, with what PyTorch and JAX compute with."""
        return environment.describe(self._seed)

    def modules(self) -> Mapping[str, ModuleInfo]:
        """All modules of the root by path."""
        return capture_torch.modules(self._root)

    def tensors(self) -> Sequence[Tensor]:
        """All parameters and buffers."""
        return capture_torch.named_tensors(self._root)

    def seeded(self) -> AbstractContextManager[None]:
        """A context in which random layers draw the same numbers in every case."""
        return seeded(self._seed)

    def arguments(self, case: Case, layout: Layout) -> Arguments:
        """The reference's arguments in the port's layout."""
        module = self._called(case)
        capture_torch.check_given(module, case.args, case.kwargs)
        return port_arguments(module, case.torch, case.args, case.kwargs, case.path, layout)

    def record(self, case: Case, store: Store, layout: Layout, inside: Inside) -> Trace:
        """Calls of a run, or the one call whose output is known from cases before."""
        module, method = self._called(case), case.torch
        if case.returned_from is not None:
            method = returning(case.returned_from({}), module, method)
        subtree = Subtree(case.path, inside)
        given = module, method, case.args, case.kwargs
        record = partial(capture_torch.record, *given, store=store, layout=layout)
        trace = record(subtree=subtree)
        if case.returned_from is not None:
            return trace
        return with_random(trace, partial(record, moved=True), store, subtree)

    def float64(self, case: Case) -> TorchModules:
        """Modules that can be run in float64."""
        named = self._called(case).named_modules()
        return TorchModules({join(case.path, path): module for path, module in named}, case.torch)

    def backward(self, case: Case) -> "TorchBackward":
        """Backward pass from gradients at the outputs that the seed gives."""
        from parity.gradients.torch import TorchBackward

        return TorchBackward(self.float64(case).modules, case.torch, self._seed)

    diagnose = staticmethod(diagnose)

    keep = staticmethod(keep)

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """Optional arguments by the signatures of the classes."""
        return capture_torch.optional_arguments(self._called(case), case.torch)

    def weights_of(self, path: str) -> Mapping[str, Array]:
        """Values of the tensors of one module, by name below it."""
        tensors = capture_torch.named_tensors(self._root.get_submodule(path))
        return {one.full_name: np.ascontiguousarray(one.read()) for one in tensors}

    def notes(self, case: Case) -> tuple[str, ...]:
        """A warning of modules in train mode that behave differently there."""
        found = [
            path_name(path)
            for path, one in self._called(case).named_modules()
            if one.training
            and (
                (isinstance(one, _DropoutNd) and one.p > 0)
                or getattr(one, "track_running_stats", False) is True
            )
        ]
        text = f"the reference is in train mode: {', '.join(found[:5])}; call .eval()"
        return (text,) if found else ()

    def _called(self, case: Case) -> torch.nn.Module:
        return self._root.get_submodule(case.path)
