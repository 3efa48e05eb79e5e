"""Modules that raise, return views, change shape, have no parameters, recurse, or are empty."""

import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from tests.hostile.case import Case, Compared
from tests.hostile.models import X, around, compared, linear
from tests.nets import torch_of
from tests.ports import nnx_of

EVIL = "a</script><script>alert(1)</script>"


def case(
    name: str, make: Callable[[], Compared], wanted: int | str | type[BaseException], *says: str
) -> Case:
    return Case("module", name, compared=make, wanted=wanted, says=says)


def fail(*_: Any) -> NoReturn:
    raise KeyError("no such\nthing")


def hooked(register: Callable[[Any], object]) -> Compared:
    """A layer with a hook of its author's."""
    made = around(lambda self, x: self.a(x))
    register(made.torch_module.a)
    return made


def counted(theirs: Callable[[int, Any], Any], ours: Callable[[int, Any], Any]) -> Compared:
    """Modules whose every call does something else: they count where nobody puts it back."""

    def call(change: Callable[[int, Any], Any]) -> Callable[[Any, Any], Any]:
        count = itertools.count(1)
        return lambda self, x: change(next(count), self.a(x))

    return around(call(theirs), call(ours))


def recursive() -> Compared:
    """Each module calls itself three times."""

    def down(self: Any, x: Any, depth: int = 3) -> Any:
        return self.a(self(x, depth - 1)) if depth else self.a(x)

    return around(down)


def shared() -> Compared:
    """A module under three names, and in a circle of attributes that are no submodules."""
    made = around(lambda self, x: self.c(self.b(self.a(x))))
    for side in (made.torch_module, made.nnx_module):
        side.b = side.c = side.a
    object.__setattr__(made.torch_module, "me", [made.torch_module])
    return made


def deep(levels: int) -> Compared:
    """A module in a module, many times."""
    theirs, ours = linear()
    for _ in range(levels):
        theirs = torch_of(lambda self, x: self.a(x), a=theirs)
        ours = nnx_of(lambda self, x: self.a(x), a=ours)
    return compared(theirs, ours)


def wide(count: int) -> Compared:
    """Very many modules side by side."""

    def add(self: Any, x: Any) -> Any:
        for name in names:
            x = getattr(self, name)(x)
        return x

    names = [f"m{i}" for i in range(count)]
    theirs = torch_of(add, **{name: torch.nn.Identity() for name in names})
    ours = nnx_of(add, **{name: nnx_of(lambda self, x: x) for name in names})
    return compared(theirs, ours)


def named(name: str) -> Compared:
    """A submodule of another name."""

    def call(self: Any, x: Any) -> Any:
        found = self._modules[name] if isinstance(self, torch.nn.Module) else getattr(self, name)
        return found(x)

    first, second = linear()
    return compared(torch_of(call, **{name: first}), nnx_of(call, **{name: second}))


def plain(
    theirs: Callable[[Any], Any], ours: Callable[[Any], Any], *args: Any, **options: Any
) -> Compared:
    """Functions without parameters."""
    return compared(torch_of(lambda self, *x: theirs(*x)), nnx_of(lambda self, *x: ours(*x)),
                    *args, **options)  # fmt: skip


def same(function: Callable[..., Any], *args: Any, **options: Any) -> Compared:
    return plain(function, function, *args, **options)


def of_weights(value: float) -> Compared:
    """Both sides with one weight that is no number."""
    made = around(lambda self, x: self.a(x))
    with torch.no_grad():
        made.torch_module.a.weight[0, 0] = value
    made.nnx_module.a.kernel[0, 0] = value
    return made


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def misused(**options: Any) -> Compared:
    """A good pair and arguments that cannot be."""
    made = around(lambda self, x: self.a(x))
    return Compared(made.torch_module, made.nnx_module, {**made.options, **options})


def of(theirs: Any, ours: Any) -> Compared:
    """Things that are no modules."""
    return compared(theirs, ours)


def _once(module: torch.nn.Module) -> None:
    handle = module.register_forward_hook(lambda *_: handle.remove())


RAISE = [
    case("a reference that raises", lambda: around(fail, lambda self, x: x), KeyError),
    case("a port that raises", lambda: around(lambda self, x: self.a(x), fail), KeyError),
    case("a hook that raises", lambda: hooked(lambda m: m.register_forward_hook(fail)), KeyError),
    case("a hook before that raises",
         lambda: hooked(lambda m: m.register_forward_pre_hook(fail)), KeyError),
    case("a hook that changes the output", lambda: hooked(
         lambda m: m.register_forward_hook(lambda module, args, out: out + 1)), "FAIL"),
    case("a hook that takes itself away", lambda: hooked(_once), "PASS"),
    case("a reference that fails at the second call", lambda: counted(
         lambda n, x: fail() if n > 1 else x, lambda n, x: x), "UNKNOWN"),
    case("a port that fails at the second call", lambda: counted(
         lambda n, x: x, lambda n, x: fail() if n > 1 else x), KeyError),
    case("a missing argument", lambda: around(lambda self, x, y: self.a(x)), TypeError),
    case("an argument too many", lambda: around(lambda self, x: self.a(x), None, X, X), TypeError),
    case("shapes that do not fit", lambda: around(lambda self, x: self.a(x), None, X[:, :3]),
         RuntimeError),
    case("recursion without end", lambda: around(lambda self, x: self(x)), RecursionError),
]  # fmt: skip


RETURN = [
    case("a view of the input", lambda: same(lambda x: x[:, :2]), "PASS"),
    case("the input itself", lambda: same(lambda x: x), "PASS"),
    case("a transposed view", lambda: same(lambda x: x.T), "PASS"),
    case("a view that is written to later", lambda: plain(
         lambda x: torch.zeros(3, 4).copy_(x)[1:].mul_(2), lambda x: x[1:] * 2), "PASS"),
    case("its input, changed in place", lambda: plain(lambda x: x.mul_(2), lambda x: x * 2),
         "PASS"),
    case("an expanded view", lambda: plain(
         lambda x: x[:1].expand(5, 4), lambda x: jnp.broadcast_to(x[:1], (5, 4))), "PASS"),
    case("None", lambda: same(lambda x: None), "FAIL"),
    case("a string", lambda: same(lambda x: "x"), "FAIL"),
    case("a number", lambda: same(lambda x: 3), "FAIL"),
    case("an empty tuple", lambda: same(lambda x: ()), "FAIL"),
    case("nothing but None in a list", lambda: same(lambda x: [None]), "FAIL"),
    case("an array beside an object", lambda: same(lambda x: (x, object())), "UNKNOWN"),
    case("a dict of a dict of a list", lambda: same(lambda x: {"a": {"b": [x, {"c": x}]}}), "PASS"),
    case("a dict with keys that are numbers", lambda: same(lambda x: {1: x, 2: x}), "PASS"),
    case("a dict with an evil key", lambda: same(lambda x: {EVIL: x}), "PASS"),
    case("a hundred arrays", lambda: same(lambda x: [x] * 100), "PASS"),
    case("another number of arrays", lambda: plain(lambda x: (x, x), lambda x: (x,)), "WARN"),
    case("another shape", lambda: plain(lambda x: x, lambda x: x[:2]), "FAIL"),
    case("an array with an axis more", lambda: plain(lambda x: x, lambda x: x[None]), "FAIL"),
    case("integers instead of floats", lambda: plain(
         lambda x: x, lambda x: x.astype(jnp.int32)), "FAIL"),
    case("booleans", lambda: same(lambda x: x > 0), "PASS"),
    case("complex numbers", lambda: same(lambda x: x * 1j), "PASS"),
    case("another shape at every call", lambda: counted(
         lambda n, x: x[: 1 + n % 2], lambda n, x: x[: 1 + n % 2]), "WARN"),
    case("other values at every call", lambda: counted(
         lambda n, x: x * n, lambda n, x: x * n), "UNKNOWN"),
]  # fmt: skip

SHAPES = [
    case("a 0-d tensor", lambda: same(lambda x: x * 2, np.float32(3) * np.ones((), np.float32)),
         "PASS"),
    case("a 0-d output", lambda: same(lambda x: x.sum()), "PASS"),
    case("a 0-d parameter", lambda: compared(
         torch_of(lambda self, x: x * self.w, w=torch.nn.Parameter(torch.tensor(2.0))),
         nnx_of(lambda self, x: x * self.w[...], w=nnx.Param(jnp.float32(2)))), "PASS"),
    case("an empty batch", lambda: around(lambda self, x: self.a(x), None, zeros(0, 4)), "FAIL"),
    case("an empty output", lambda: same(lambda x: x[:0]), "FAIL"),
    case("an axis of length 0", lambda: same(lambda x: x, zeros(3, 0)), "FAIL"),
    case("one value", lambda: same(lambda x: x, np.ones((1, 1), np.float32)), "PASS"),
    case("eight axes", lambda: same(lambda x: x * 2, np.ones((1, 1, 1, 2, 1, 1, 1, 1), np.float32),
         layout={"*": "as_is"}), "WARN"),
    case("zeros everywhere", lambda: around(lambda self, x: self.a(x), None, zeros(3, 4)), "WARN"),
    case("NaN everywhere", lambda: same(lambda x: x, zeros(3, 4) * np.nan), "UNKNOWN"),
    case("infinities everywhere", lambda: same(lambda x: x, zeros(3, 4) + np.inf), "UNKNOWN"),
    case("a NaN among the inputs", lambda: around(lambda self, x: self.a(x), None, np.where(
         np.arange(12).reshape(3, 4) == 5, np.float32(np.nan), X)), "WARN"),
    case("numbers near the largest", lambda: same(lambda x: x * 1, X * np.float32(1e38)), "PASS"),
    case("numbers that overflow", lambda: same(
         lambda x: x * 1e30, X * np.float32(1e30)), "UNKNOWN"),
    case("subnormal numbers, which XLA makes 0", lambda: same(
         lambda x: x * 1, X * np.float32(1e-40)), "FAIL"),
    case("int8 inputs", lambda: same(lambda x: x * 1, X.astype(np.int8)), "PASS"),
    case("boolean inputs", lambda: same(lambda x: x, X > 0), "PASS"),
    case("inputs whose memory is not in order", lambda: around(
         lambda self, x: self.a(x), None, np.asfortranarray(X)), "PASS"),
    case("inputs that run backwards", lambda: around(
         lambda self, x: self.a(x), None, X[::-1, ::-1]), "PASS"),
    case("inputs that may not be written to", lambda: around(
         lambda self, x: self.a(x), None, np.broadcast_to(X[:1], (3, 4))), "PASS"),
    case("a list of inputs", lambda: around(lambda self, x: self.a(x[0]), None, [X]), "PASS"),
    case("no inputs", lambda: compared(
         torch_of(lambda self: torch.ones(3)), nnx_of(lambda self: jnp.ones(3)),
         torch_args=()), "PASS"),
]  # fmt: skip

STRUCTURE = [
    case("no parameters", lambda: same(lambda x: x * 2), "PASS"),
    case("no parameters and a mistake", lambda: plain(lambda x: x * 2, lambda x: x * 3), "FAIL"),
    case("a module that calls itself", recursive, "PASS"),
    case("one module under three names", shared, "PASS"),
    case("sixty modules, one in the other", lambda: deep(60), "PASS"),
    case("five hundred modules side by side", lambda: wide(500), "PASS"),
    case("a name with a script", lambda: named("a<b>"), "PASS"),
    case("a name with a line end", lambda: named("a\nb"), "PASS"),
    case("a name with an escape sequence", lambda: named("\x1b[2J"), "PASS"),
    case("a name of 10,000 characters", lambda: named("n" * 10_000), "PASS"),
    case("a name that is a glob", lambda: named("[a]*"), "PASS"),
    case("a name with a formula of spreadsheets", lambda: named("=1+1"), "PASS"),
    case("a name with a path", lambda: named("/tmp/x"), "PASS"),
    case("an unused module of the reference", lambda: compared(
         torch_of(lambda self, x: x, a=torch.nn.Linear(4, 4)), nnx_of(lambda self, x: x)), "WARN"),
    case("an unused module of the port", lambda: compared(
         torch_of(lambda self, x: x), nnx_of(lambda self, x: x, a=linear()[1])), "WARN"),
    case("a weight that is NaN on both sides", lambda: of_weights(float("nan")), "PASS"),
    case("a weight that is infinite on both sides", lambda: of_weights(float("inf")), "PASS"),
    case("a reference in float64", lambda: around(
         lambda self, x: self.a.double()(x.double()), lambda self, x: self.a(x)), "FAIL"),
    case("a module without values", lambda: compared(
         torch_of(lambda self, x: self.a(x), a=torch.nn.Linear(4, 4, device="meta")),
         nnx_of(lambda self, x: self.a(x), a=linear()[1])), 2, "meta"),
]  # fmt: skip

MISUSE = [
    case("nnx_args that lack one", lambda: misused(nnx_args=()), TypeError, "argument: 'x'"),
    case("the modules in the wrong order", lambda: of(*reversed(linear())), 2, "in this order"),
    case("functions instead of modules", lambda: of(abs, abs), 2, "in this order"),
    case("None instead of modules", lambda: of(None, None), 2, "in this order"),
    case("a class instead of a module", lambda: of(torch.nn.Linear, nnx.Linear), 2, "expected"),
    *(case(f"{name}={value!r:.40}", lambda name=name, value=value: misused(
           **{name: value}), 2, *says)
      for name, value, *says in (
        ("torch_args", X, "torch_args", "tuple"), ("torch_args", None, "torch_args"),
        ("torch_args", "x", "torch_args"), ("torch_args", {"x": X}, "torch_args"),
        ("nnx_args", X, "nnx_args"), ("nnx_args", (X[:2],), "nnx_args"),
        ("nnx_args", (X + 1,), "nnx_args"),
        ("torch_kwargs", [X], "torch_kwargs"), ("nnx_kwargs", "x", "nnx_kwargs"),
        ("torch_method", "gone", "gone"), ("torch_method", {}, "torch_method"),
        ("nnx_method", None, "nnx_method"), ("nnx_method", 2, "nnx_method"),
        ("torch_method", "training", "training"), ("nnx_method", "gone", "gone"),
        ("layout", {"*": "transpose"}, "layout"), ("layout", {"gone": "channels_first"}, "gone"),
        ("layout", "channels_first", "layout"), ("layout", {"*": None}, "layout"),
        ("rename", {"gone": "a"}, "gone"), ("rename", "a", "rename"), ("rename", ["a"], "rename"),
        ("ignore", "a", "ignore"), ("ignore", ["gone"], "gone"), ("ignore", [3], "ignore"),
        ("seed", -1, "seed"), ("seed", "0", "seed"), ("seed", 2**70, "seed"), ("seed", 0.5, "seed"),
        ("fused", ["a"], "fused"), ("fused", "a", "fused"),
        ("emulate", "fp8", "emulate"), ("emulate", 3, "emulate"),
        ("only", "a", "only"), ("only", ["gone"], "gone"), ("only", [None], "only"),
        ("depth", -1, "depth"), ("depth", "1", "depth"), ("depth", 0.5, "depth"),
      )),
]  # fmt: skip

CASES = [*RAISE, *RETURN, *SHAPES, *STRUCTURE, *MISUSE]
