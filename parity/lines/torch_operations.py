"""The operations of a PyTorch program: each with its values, in its own type and in float64."""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch._decomp import get_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from parity.capture.torch import tensors, to_numpy
from parity.core.tree import flatten
from parity.lines.operations import Program
from parity.lines.source import Frames, stack
from parity.lines.values import ENDLESS

MOVES = frozenset(
    {
        *(
            "t",
            "view",
            "reshape",
            "permute",
            "transpose",
            "expand",
            "unsqueeze",
            "squeeze",
            "slice",
        ),
        *("select", "cat", "stack", "clone", "split", "split_with_sizes", "unbind", "detach"),
        *("alias", "as_strided", "_unsafe_view", "flip", "lift_fresh", "unfold", "chunk", "roll"),
    }
)
"""Operations whose outputs are entries of their inputs."""

_aten = torch.ops.aten
PARTS = get_decompositions(
    [
        *(_aten.native_layer_norm, _aten.native_group_norm, _aten.native_batch_norm),
        *(_aten._native_batch_norm_legit, _aten._native_batch_norm_legit_no_training),
    ]
)
"""What norms are made of: a port may write them out, and go wrong inside."""


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation in the block and fills `program`, while it is `active`.

    Each tensor has a `twin` of the other precision, on which each operation is made too: a program
    in float64 has twins of type `narrow`, any other has twins in float64. So the distance of a
    value from the exact one is known. In-place operations make a new value each time, and fused
    attention is taken apart.
    """

    active = True

    def __init__(self, program: Program, narrow: torch.dtype | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = program
        self._narrow = narrow
        self._numbers: Any = WeakIdKeyDictionary()
        self._twins: Any = WeakIdKeyDictionary()
        self._by_storage: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self._base: FrameType | None = None
        self._blocks = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: PyTorch would import its compiler, which takes seconds, to keep it out of here."""
        return False

    def __enter__(self, depth: int = 1) -> "Watched":
        self._base = sys._getframe(depth)
        self._blocks.enter_context(whole_operations())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._blocks.close()
            self._base = None

    def here(self) -> Frames:
        """The stack of the caller, up to where the block began."""
        assert self._base is not None
        return stack(self._base, 2)

    def number(self, tensor: torch.Tensor) -> int:
        """Number of the value that a tensor holds now; one that nothing made came from outside."""
        if tensor not in self._numbers:
            weight = isinstance(tensor, torch.nn.Parameter)
            self._remember(tensor, self.program.give(_numbers(tensor), weight=weight))
        number: int = self._numbers[tensor]
        return number

    def weights(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note tensors that are weights."""
        for tensor in tensors:
            self.program.values[self.number(tensor)].weight = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        if func in PARTS:
            super().__enter__()  # type: ignore[no-untyped-call]
            try:
                return PARTS[func](*args, **kwargs)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        flat, form = tree_flatten((args, kwargs))
        given = [value for value in flat if isinstance(value, torch.Tensor)]
        inputs = [self.number(tensor) for tensor in given]
        twins = [self._twin(value) if isinstance(value, torch.Tensor) else value for value in flat]
        output = func(*args, **kwargs)
        made = [value for value in tree_flatten(output)[0] if isinstance(value, torch.Tensor)]
        written = _written(func, args, kwargs)
        if func.overloadpacket.__name__ == "detach" and len(made) == 1:
            self._numbers[made[0]], self._twins[made[0]] = inputs[0], twins[0]
            return output
        again = self._again(func, tree_unflatten(twins, form), output)
        pairs = list(zip(made, again, strict=True))
        for tensor in (*written, *self._sharing(written)):  # new values, also for their views
            if all(tensor is not one for one, _ in pairs):
                pairs.append((tensor, self._twin(tensor)))
        self._note(func, inputs, pairs)
        return output

    def _again(self, func: Any, given: Any, output: Any) -> list[torch.Tensor]:
        """The twins of the output: made of those of the inputs, or, of what draws, copies."""
        made = [value for value in tree_flatten(output)[0] if isinstance(value, torch.Tensor)]
        if torch.Tag.nondeterministic_seeded in func.tags:
            return [self._fresh(tensor) for tensor in made]
        args, kwargs = given
        # what the program computes in is another type for its twins
        if kwargs.get("dtype") in (_FLOATS if self._narrow is None else (torch.float64,)):
            kwargs = {**kwargs, "dtype": self._narrow or torch.float64}
        try:
            twins = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):  # no kernel for this type
            return [self._fresh(tensor) for tensor in made]
        found = [value for value in tree_flatten(twins)[0] if isinstance(value, torch.Tensor)]
        same = len(found) == len(made) and all(
            x.shape == y.shape for x, y in zip(found, made, strict=True)
        )
        return list(found) if same else [self._fresh(tensor) for tensor in made]

    def _note(
        self, func: Any, inputs: Sequence[int], made: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Add an operation to the program, with the tensors that it made and their twins."""
        if not made:
            return
        both = [pair if self._narrow is not None else pair[::-1] for pair in made]
        name = func.overloadpacket.__name__
        numbers = self.program.make(
            name.strip("_"),
            inputs,
            [_numbers(wide) for wide, _ in both],
            self.here(),
            moves=_moves(name, [tensor for tensor, _ in made]),
            roundings=[_rounding(wide, narrow) for wide, narrow in both],
        )
        for (tensor, twin), number in zip(made, numbers, strict=True):
            self._remember(tensor, number)
            self._twins[tensor] = twin

    def _sharing(self, written: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The tensors that see what was written to these."""
        for tensor in written:
            held = self._by_storage.get(tensor.untyped_storage()._cdata, [])
            yield from (one for ref in held if (one := ref()) is not None and one is not tensor)

    def _remember(self, tensor: torch.Tensor, number: int) -> None:
        if tensor not in self._numbers:
            key = tensor.untyped_storage()._cdata
            self._by_storage.setdefault(key, []).append(weakref.ref(tensor))
        self._numbers[tensor] = number

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._twins:
            self.number(tensor)
            self._twins[tensor] = self._fresh(tensor)
        twin: torch.Tensor = self._twins[tensor]
        return twin

    def _fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself in the other precision."""
        if tensor.is_complex():
            kind = torch.complex128 if self._narrow is None else torch.complex64
        elif tensor.is_floating_point():
            kind = self._narrow or torch.float64
        else:
            return tensor.clone()
        return tensor.detach().to(kind, copy=True)


_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def whole_operations() -> Iterator[None]:
    """Fused attention and fused encoder layers are made of their parts in the block."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation writes to."""
    found: list[torch.Tensor] = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]
    return found


def _moves(name: str, made: Sequence[torch.Tensor]) -> bool:
    """True if the outputs are entries of the inputs, in full precision."""
    if name == "_to_copy":
        return all(x.dtype not in (torch.bfloat16, torch.float16) for x in made)
    return name in MOVES


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy of the values: a program may write to its own."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(to_numpy(tensor))


def _rounding(wide: torch.Tensor, narrow: torch.Tensor) -> float:
    """How far a value may be from the exact one: as far as PyTorch is, at least four roundings."""
    if not narrow.is_floating_point() and not narrow.is_complex():
        return 0.0
    kind = torch.complex128 if narrow.is_complex() else torch.float64
    exact, rounded = wide.detach().to(kind), narrow.detach().to(kind)
    finite = (exact.abs() < ENDLESS) & (rounded.abs() < ENDLESS)  # not what a mask puts in
    if not finite.all():
        exact, rounded = exact[finite], rounded[finite]
    if not exact.numel():
        return 0.0
    own = float((exact - rounded).abs().square().mean().sqrt())
    size = float(exact.abs().square().mean().sqrt())
    return max(own, 4 * _unit(narrow.dtype) * size)


def _unit(kind: torch.dtype) -> float:
    return float(torch.finfo(kind).eps) / 2


def run(
    function: Callable[..., Any], weights: Sequence[torch.Tensor], args: Sequence[Any]
) -> tuple[Program, list[int]]:
    """The program of `function(*args)` on arrays or tensors, and the numbers of its outputs."""
    program = Program()
    with torch.no_grad(), Watched(program) as watched:
        watched.active = False
        args, _ = tensors(tuple(args), {})
        watched.weights(weights)
        watched.active = True
        output = flatten(function(*args))
        watched.active = False
        return program, [watched.number(value) for _, value in output.arrays]
