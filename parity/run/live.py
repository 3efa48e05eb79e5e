"""The reference that runs: recorded anew, run in float64, and changed to find out why."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from parity.capture import layout as layout_rules
from parity.capture import torch as capture_torch
from parity.capture.recorder import Scope, bind, join
from parity.core.calls import Trace
from parity.core.pair import Case, Pair, PairOptions
from parity.core.store import Store
from parity.core.tree import flatten, mapped, rebuild
from parity.core.verdicts import Diagnosis
from parity.diagnose.diagnose import diagnose
from parity.diagnose.scene import Scene
from parity.force.float64 import TorchModules
from parity.gradients.torch import TorchBackward
from parity.judge.faults import Found


def facts(
    pair: Pair, reference: torch.nn.Module, cases: Sequence[Case], options: PairOptions, seed: int
) -> dict[str, Any]:
    """Return what a report says of the reference and of its inputs, with what the pair says."""
    sources = "; ".join(dict.fromkeys(case.source for case in cases if case.source))
    given = ", ".join(f"{key} {value}" for key, value in options.items() if value is not None)
    return {
        "input": sources or f"made by the pair{given and f' ({given})'}",
        **pair.facts(options, seed),
        "parameters": sum(p.numel() for p in reference.parameters()),
    }


class Live:
    """A PyTorch module as the reference of `run_case`.

    `before` is what it returned in the cases before, for those that are known from it.
    """

    def __init__(
        self, root: torch.nn.Module, before: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._root, self._before = root, {} if before is None else before

    def arguments(
        self, case: Case, layout: Mapping[str, str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The reference's arguments in the port's layout."""
        module = self._called(case)
        kinds = [cls.__name__ for cls in type(module).__mro__]
        function = capture_torch.target(module, case.torch)
        names = list(bind(function, case.args, case.kwargs))

        def convert(name: str, value: Any) -> Any:
            flat = flatten(value)
            arrays = []
            for leaf, array in flat.arrays:
                plain = capture_torch.to_numpy(array) if isinstance(array, torch.Tensor) else array
                full = f"{name}.{leaf}" if leaf else name
                floating = plain.dtype.kind in "fcV"
                how = layout_rules.reading(case.path, full, kinds, plain.ndim, floating, layout)
                moved = np.moveaxis(plain, 1, -1) if how.move else plain
                arrays.append(np.ascontiguousarray(moved).reshape(moved.shape))
            return rebuild(flat.skeleton, arrays) if arrays else value

        args = tuple(convert(names[min(i, len(names) - 1)], a) for i, a in enumerate(case.args))
        return args, {name: convert(name, value) for name, value in case.kwargs.items()}

    def paths(self) -> Collection[str]:
        """As they are named in the root."""
        return [path for path, _ in self._root.named_modules()]

    def record(
        self,
        case: Case,
        store: Store,
        layout: Mapping[str, str],
        inside: Collection[str] | None,
    ) -> Trace:
        """Run it, unless what it returns has been shown before."""
        module, method = self._called(case), case.torch
        if case.returned_from is not None:
            method = _returning(case.returned_from(self._before), module, method)
        return capture_torch.record(
            module, method, case.args, case.kwargs,
            store=store, layout=layout, scope=Scope(case.path, inside),
        )  # fmt: skip

    def float64(self, case: Case) -> TorchModules:
        """Its modules, which can be run in float64."""
        named = self._called(case).named_modules()
        return TorchModules({join(case.path, path): module for path, module in named}, case.torch)

    def backward(self, case: Case, seed: int) -> TorchBackward:
        """Its backward pass, from gradients at its outputs that a seed gives."""
        named = self._called(case).named_modules()
        modules = {join(case.path, path): module for path, module in named}
        return TorchBackward(modules, case.torch, seed)

    def diagnose(self, found: Found, scene: Scene) -> Diagnosis:
        """By what, changed in the reference, makes it do what the port does."""
        reference = scene.sides.reference
        assert isinstance(reference, TorchModules)  # `float64` made it
        return diagnose(found, scene, reference)

    def optional(self, case: Case) -> Mapping[str, Sequence[str]]:
        """As the signatures of the classes say."""
        return capture_torch.optional_arguments(self._called(case))

    def notes(self, case: Case) -> tuple[str, ...]:
        """Modules that do something else in train mode, and are in it."""
        paths = [
            path or "<root>"
            for path, one in self._called(case).named_modules()
            if one.training and (getattr(one, "p", 0) or getattr(one, "track_running_stats", False))
        ]
        found = ", ".join(paths[:5])
        return (f"the reference is in train mode: {found}; call .eval()",) if paths else ()

    def _called(self, case: Case) -> torch.nn.Module:
        return self._root.get_submodule(case.path)


def _returning(value: Any, module: torch.nn.Module, method: capture_torch.Method) -> Any:
    """A method that returns `value`, with the arguments of `method`."""
    returned = mapped(torch.from_numpy, value)
    cls = type(module)
    named = cls.forward if method == "__call__" else method
    function = getattr(cls, named) if isinstance(named, str) else named

    @functools.wraps(function)
    def known(*args: Any, **kwargs: Any) -> Any:
        return returned

    return known
