"""Which tensor of the port holds which of the reference, in what order of axes, or what is wrong.

Only the values decide: names tell which tensors to compare, and where none fits, which other
tensor's values these are.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from parity.folding import SPARE, Folding

Array = Shaped[np.ndarray, "..."]

ALIKE = Folding()
"""Both sides have the same modules."""

CLOSE = 2.0**-20
"""Values this near, in units of the largest, are the same but for rounding."""


@dataclass(frozen=True)
class Tensor:
    """A parameter or buffer: path of its owner, own name, values."""

    path: str
    name: str
    values: Array
    buffer: bool = False

    @property
    def full_name(self) -> str:
        """The dotted name."""
        return f"{self.path}.{self.name}" if self.path else self.name


@dataclass(frozen=True)
class Entry:
    """A tensor of the reference and the port's that corresponds to it.

    `axes` is the order of the reference's axes in the port's array, `()` if the values are not the
    same in any order. `cause` and `finding` say what is wrong, `""` if nothing is.
    """

    ref: Tensor
    port: Tensor | None
    axes: tuple[int, ...] = ()
    cause: str = ""
    finding: str = ""


class Ledger:
    """Compares the tensors of two models, owner by owner."""

    def __init__(
        self, ref: Sequence[Tensor], port: Sequence[Tensor], folding: Folding = ALIKE
    ) -> None:
        self._ref = [tensor for tensor in ref if tensor.name not in SPARE]
        self._folding = folding
        self._port: dict[str, list[Tensor]] = {}
        for tensor in port:
            self._port.setdefault(folding.port.get(tensor.path, tensor.path), []).append(tensor)

    def of(self, path: str, port_path: str) -> tuple[Entry, ...]:
        """The entries of one module's own tensors, and of those that count with it."""
        owner = self._folding.ref
        theirs = [tensor for tensor in self._ref if owner.get(tensor.path, tensor.path) == path]
        ours = list(self._port.get(port_path, ()))
        pairs: list[tuple[Tensor, Tensor | None]] = []
        for tensor in theirs:
            partner = _partner(tensor, ours)
            if partner is not None:
                ours.remove(partner)
            pairs.append((tensor, partner))
        return tuple(self._entry(tensor, partner) for tensor, partner in pairs)

    def _entry(self, ref: Tensor, port: Tensor | None) -> Entry:
        if port is None:
            return Entry(ref, None, cause="weights_missing", finding=f"{ref.full_name}: no tensor"
                         " of the port's module has its size")  # fmt: skip
        axes = same_values(ref.values, port.values)
        if axes is not None:
            expected = usual_axes(ref.values, port.values)
            if axes == expected or expected is None:
                return Entry(ref, port, axes)
            text = f"{ref.full_name}: axes {axes} of the reference, not {expected}"
            return Entry(ref, port, axes, "weights_layout", text)
        axes = same_values(ref.values, port.values, CLOSE)
        if axes is not None:
            return Entry(ref, port, axes)
        cause, finding = self._finding(ref, port)
        return Entry(ref, port, cause=cause, finding=f"{ref.full_name}: {finding}")

    def _finding(self, ref: Tensor, port: Tensor) -> tuple[str, str]:
        for text, values in _variants(ref.values):
            if same_values(values, port.values) is not None:
                return "weights_layout", text
        if ref.values.size == port.values.size and np.array_equal(
            ref.values.reshape(-1), port.values.reshape(-1)
        ):
            return "weights_layout", "reshaped to fit, its axes not permuted"
        for name in ("bfloat16", "float16"):
            rounded = ref.values.astype(getattr(ml_dtypes, name, np.dtype("float16")))
            if same_values(rounded.astype(ref.values.dtype), port.values) is not None:
                return "weights_precision", f"rounded to {name}"
        other = self._whose.get(_fingerprint(port.values))
        if other is not None and other != ref.full_name:
            return "weights_swapped", f"holds the values of {other}"
        if np.ptp(port.values) == 0:
            what = f"every entry is {port.values.flat[0]:g}, as if never loaded"
            return ("norm_buffers" if ref.buffer else "weights_missing"), what
        return _unlike(ref, port)

    @cached_property
    def _whose(self) -> Mapping[bytes, str]:
        return {_fingerprint(tensor.values): tensor.full_name for tensor in self._ref
                if np.ptp(tensor.values) != 0}  # fmt: skip


def usual_axes(ref: Array, port: Array) -> tuple[int, ...] | None:
    """Order of axes that a kernel of this shape usually has in Flax; `None` if two are usual."""
    n = ref.ndim
    if n < 2:
        return tuple(range(n))
    usual = (*range(2, n), 1, 0)
    if tuple(ref.shape[i] for i in usual) == port.shape:
        # the transposed convolution of Flax has its channels either way round
        return usual if ref.shape[0] != ref.shape[1] or n == 2 else None
    return None


def same_values(ref: Array, port: Array, tolerance: float = 0.0) -> tuple[int, ...] | None:
    """The order of the reference's axes in which its values are the port's, the usual one first.

    `tolerance` is relative to the largest value.
    """
    if ref.size != port.size or ref.ndim != port.ndim:
        return None
    usual = (*range(2, ref.ndim), 1, 0) if ref.ndim > 1 else (0,) * ref.ndim
    orders = itertools.chain([usual], itertools.permutations(range(ref.ndim)))
    for axes in orders:
        if tuple(ref.shape[i] for i in axes) == port.shape and _equal(ref, port, axes, tolerance):
            return axes
    return None


def _equal(ref: Array, port: Array, axes: tuple[int, ...], tolerance: float) -> bool:
    moved = ref.transpose(axes) if ref.ndim else ref
    line = (0,) * (ref.ndim - 1) if ref.ndim else ()
    if not tolerance:  # one line of it tells nearly always
        return np.array_equal(moved[line], port[line]) and np.array_equal(moved, port)
    atol = tolerance * float(np.abs(ref).max(initial=0.0))
    return np.allclose(moved[line], port[line], 0, atol) and np.allclose(moved, port, 0, atol)


def _variants(values: Array) -> Iterator[tuple[str, Array]]:
    for count in range(1, max(values.ndim - 1, 1)):
        for axes in itertools.combinations(range(2, values.ndim), count):
            yield f"flipped along axes {axes}", np.flip(values, axes)
    if values.ndim == 1:
        yield "in opposite order", values[::-1]


def _partner(ref: Tensor, ours: Sequence[Tensor]) -> Tensor | None:
    """The port's tensor by name, else the only one, or the first, of that size."""
    names = {
        "weight": ("weight", "kernel", "scale", "embedding"),
        "running_mean": ("running_mean", "mean"),
        "running_var": ("running_var", "var"),
    }
    fit = [tensor for tensor in ours if tensor.values.size == ref.values.size]
    wanted = names.get(ref.name, (ref.name,))
    by_name = [tensor for tensor in fit if tensor.name in wanted]
    return next(iter(by_name or fit), None)


def _fingerprint(values: Array) -> bytes:
    """Equal for the same values in any order of axes."""
    flat = np.sort(values.reshape(-1))
    return flat.tobytes() if flat.size < 64 else flat[:: max(flat.size // 64, 1)].tobytes()


def _unlike(ref: Tensor, port: Tensor) -> tuple[str, str]:
    """Values that are no known change of the reference's: how far off, in the likeliest order."""
    best, size = 0.0, float("nan")
    a = ref.values.astype(np.float64)
    for axes in itertools.permutations(range(a.ndim)):
        if tuple(ref.values.shape[i] for i in axes) == port.values.shape:
            b, moved = port.values.astype(np.float64), a.transpose(axes)
            lengths = float(np.linalg.norm(b) * np.linalg.norm(moved))
            cosine = float((b * moved).sum()) / lengths if lengths else 0.0
            if abs(cosine) >= abs(best):
                best = cosine
                size = float(np.linalg.norm(b - moved) / (np.linalg.norm(moved) or 1.0))
    if ref.buffer:
        ratio = port.values.reshape(-1) / ref.values.reshape(-1) if ref.values.ndim == 1 else None
        if ratio is not None and np.ptp(ratio) < 1e-4 * abs(float(ratio.mean())):
            return "norm_buffers", f"{float(ratio.mean()):.6g} times the reference's"
        return "norm_buffers", f"off by {size:.2g} of its size"
    if abs(best) < 0.9 and ref.values.ndim > 1:
        return "weights_missing", f"unrelated to the reference's (cosine {best:.2f})"
    return "weights_value", f"off by {size:.2g} of its size (cosine {best:.4f})"
