"""Right ports that are unusual, and legal, get a verdict or one line that says what to do."""

import collections
import contextlib
import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx

from parity.core.exceptions import InputError
from tests.nets import port_of, randomise, torch_of
from tests.ports import nnx_of
from tests.reports import compare

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(beta state|prototype stage|torch.jit)"  # what PyTorch says of its own
)

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def functions(theirs, ours, *args):
    """The verdict on two functions, each in a module of its own, beside one more."""
    reference = torch_of(
        lambda self, *x: self.inner(*x), inner=torch_of(lambda self, *x: theirs(*x))
    )
    port = nnx_of(lambda self, *x: self.inner(*x), inner=nnx_of(lambda self, *x: ours(*x)))
    return compare(reference, port, args).verdict


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ">f4", ">f2"])
def test_arrays_of_any_type_that_pytorch_has_are_arguments(kind):
    assert functions(lambda x: x * 2, lambda x: x * 2, X.astype(kind)) == "PASS"
    assert functions(lambda x: x * 2, lambda x: x * 3, X.astype(kind)) == "FAIL"


def test_an_array_of_a_type_that_pytorch_lacks_is_refused():
    with pytest.raises(InputError, match="an array of <U1, which PyTorch does not have"):
        functions(lambda x: x, lambda x: x, np.array(["a", "b"]))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda x: x.to(torch.float8_e5m2), lambda x: x.astype(jnp.float8_e5m2)),
        (lambda x: x.relu().to_sparse_csr(), jax.nn.relu),
        (lambda x: (x > 0).to(torch.int64), lambda x: (x > 0).astype("uint8")),
        (lambda x: (x > 0).short(), lambda x: (x > 0).astype("int32")),
    ],
    ids=["float8", "sparse", "unsigned", "short"],
)
def test_outputs_of_any_type_are_compared(theirs, ours):
    assert functions(theirs, ours, X) == "PASS"
    assert functions(theirs, lambda x: ours(-x), X) == "FAIL"


def test_tensors_of_tensors_are_no_arrays():
    nested = lambda x: torch.nested.as_nested_tensor([x[0], x[1, :2]])  # noqa: E731
    assert functions(nested, lambda x: x, X) == "UNKNOWN"


class Checked(collections.namedtuple("Checked", "a b")):
    def __new__(cls, a, b):
        if not isinstance(a, torch.Tensor):
            raise TypeError("a tensor, please")
        return super().__new__(cls, a, b)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: torch.nn.utils.rnn.pack_sequence([x[:3], x[:2]]),
        lambda x: Checked(x, "words"),
    ],
    ids=["packed", "checked"],
)
def test_tuples_that_check_what_they_get_are_arguments(given):
    first = lambda value: value[0] * 2  # noqa: E731
    assert functions(first, first, given(torch.from_numpy(X))) == "PASS"


class Both(collections.namedtuple("Both", "a b")):
    """Made of one tensor, by code that no other value passes."""

    def __new__(cls, tensor):
        return super().__new__(cls, tensor.clone(), tensor + 1)


@dataclasses.dataclass(frozen=True)
class Positive:
    value: Any
    by: int

    def __post_init__(self):
        if not isinstance(self.value, torch.Tensor) or (self.value < 0).any():
            raise ValueError("a positive tensor, please")


def unsorted(x):
    """Rows of lengths that do not decrease: the order of the rows is held beside them."""
    lengths = torch.tensor([1, 3])
    return torch.nn.utils.rnn.pack_padded_sequence(x[None].repeat(2, 1, 1), lengths, True, False)


@pytest.mark.parametrize(
    ("given", "use"),
    [
        (unsorted, lambda value: value.data * 2),
        (lambda x: {"rows": [unsorted(x), 2]}, lambda value: value["rows"][0].data * 2),
        (Both, lambda value: value.a * value.b),
        (lambda x: Positive(x.abs(), 3), lambda value: value.value * value.by),
        (lambda x: x.max(1), lambda value: value[0] * 2),
    ],
    ids=["unsorted", "packed in a dict", "of one tensor", "dataclass", "result of max"],
)
def test_what_checks_how_it_is_made_is_an_argument(given, use):
    made = given(torch.from_numpy(X))
    assert functions(use, use, made) == "PASS"
    assert functions(use, lambda value: use(value) * 2, made) == "FAIL"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda x: Both(x * 2), lambda x: (x * 2, x * 2 + 1)),
        (
            lambda x: torch.nn.utils.rnn.pack_sequence([x, x[:2]]),
            lambda x: (jnp.stack([x, x], 1).reshape(-1, 4)[:5],),
        ),
        (lambda x: x.sort(1), lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1))),
    ],
    ids=["of one tensor", "packed", "result of sort"],
)
def test_what_checks_how_it_is_made_is_an_output_of_a_call(theirs, ours):
    def verdict(by):
        call = lambda self, x: self.inner(x)[0] * 3  # noqa: E731
        reference = torch_of(call, inner=torch_of(lambda self, x: theirs(x)))
        port = nnx_of(call, inner=nnx_of(lambda self, x: ours(x * by)))
        return compare(reference, port, (X,)).verdict

    assert (verdict(1), verdict(2)) == ("PASS", "FAIL")


def net(scale=1.0):
    """Two layers on both sides; the port's first returns `scale` times what it should."""
    torch.manual_seed(0)
    call = lambda self, x: self.b(self.a(x))  # noqa: E731
    reference = randomise(torch_of(call, a=torch.nn.Linear(4, 4), b=torch.nn.Linear(4, 4)))
    port = port_of(reference, call)
    for leaf in (port.a.kernel, port.a.bias):
        leaf[...] = leaf[...] * scale
    return reference, port


@pytest.mark.parametrize(
    "mode",
    [
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: jax.transfer_guard("disallow"),
    ],
    ids=["inference", "autocast", "guard"],
)
def test_modes_of_the_caller_are_none_of_a_comparison_s(mode):
    made = net()
    with mode():
        assert compare(*made, (X,)).holds
    made = net(1.5)
    with mode():
        assert [fault.path for fault in compare(*made, (X,)).faults] == ["a"]


@contextlib.contextmanager
def float64_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "setting",
    [
        torch.no_grad,
        lambda: torch.device("meta"),
        float64_by_default,
        lambda: jax.transfer_guard("disallow_explicit"),
    ],
    ids=["no gradients", "device", "float64", "explicit guard"],
)
def test_settings_of_the_caller_are_none_of_a_comparison_s(setting):
    for scale, faults in ((1.0, []), (1.5, ["a"])):
        made = net(scale)
        with setting():
            before = torch.get_default_dtype(), torch.is_grad_enabled()
            report = compare(*made, (X,), gradients=True)
            assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before
        assert report.verdict == ("FAIL" if faults else "PASS")
        assert [fault.path for fault in report.faults] == faults


def test_a_model_made_in_inference_mode_is_a_reference():
    with torch.inference_mode():
        reference, port = net()
    assert compare(reference, port, (X,)).verdict == "PASS"


@pytest.mark.parametrize("compiled", ["", "a"])
def test_a_compiled_reference_is_the_one_that_was_compiled(compiled):
    def made(scale):
        reference, port = net(scale)
        if not compiled:
            return torch.compile(reference), port
        reference.a = torch.compile(reference.a)
        return reference, port

    assert compare(*made(1.0), (X,)).verdict == "PASS"
    report = compare(*made(1.5), (X,))
    assert report.verdict == "FAIL"
    assert "a" in report.first_fault.path.split(".")


def test_a_scripted_reference_is_refused():
    reference, port = net()
    traced = torch.jit.trace(reference, torch.from_numpy(X), check_trace=False)
    reference.b = torch.jit.script(reference.b)
    for one in (traced, reference):
        with pytest.raises(InputError, match="is a module of TorchScript"):
            compare(one, port, (X,))


def test_what_a_hook_of_the_user_s_changes_is_the_output():
    def made(scale):
        reference, port = net(scale)
        reference.a.register_forward_hook(lambda module, given, output: output * 3)
        reference.a.register_forward_hook(
            lambda module, given, named, output: output / 2, with_kwargs=True
        )
        return reference, port

    assert compare(*made(1.5), (X,)).holds  # the weights are said to differ, and do
    assert [fault.path for fault in compare(*made(1.0), (X,)).faults] == ["a"]
    reference, port = made(1.5)
    compare(reference, port, (X,))
    assert len(reference.a._forward_hooks) == 2


def doubled(self, x):
    return 2 * self.b(self.a(x))


def of_doubled(self, x):
    return self.b(self.a(2 * x))


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        (lambda net: net.a.register_forward_pre_hook(lambda _, given: (given[0] * 2,)), of_doubled),
        (
            lambda net: net.a.register_forward_pre_hook(
                lambda _, given, named: ((), {"input": given[0] * 2}), with_kwargs=True
            ),
            of_doubled,
        ),
        (lambda net: net.register_forward_hook(lambda _, given, output: output * 2), doubled),
        (
            lambda net: net.register_forward_hook(
                lambda _, given, output: output * 2, always_call=True
            ),
            doubled,
        ),
    ],
    ids=["input", "named input", "output of the root", "always"],
)
def test_what_hooks_of_the_user_s_change_is_what_is_compared(hook, call):
    for scale, verdict in ((1.0, "PASS"), (1.5, "FAIL")):
        reference, port = net(scale)
        hook(reference)
        report = compare(reference, nnx_of(call, a=port.a, b=port.b), (X,))
        assert report.verdict == verdict
        assert [fault.path for fault in report.faults] == ["a"] * (scale == 1.5)
        assert compare(reference, port, (X,)).verdict == "FAIL"


@pytest.mark.parametrize(
    ("wrap", "path", "rename"),
    [
        (torch.fx.symbolic_trace, "a", {}),
        (torch.nn.DataParallel, "module.a", {"module.*": "*"}),
    ],
    ids=["traced by fx", "parallel"],
)
def test_what_pytorch_s_tools_make_of_a_model_is_a_reference(wrap, path, rename):
    reference, port = net()
    assert compare(wrap(reference), port, (X,), rename=rename).verdict == "PASS"
    reference, port = net(1.5)
    report = compare(wrap(reference), port, (X,), rename=rename)
    assert [fault.path for fault in report.faults] == [path]


def test_a_forward_that_stands_in_the_module_itself_is_its_code():
    reference, port = net()
    own = reference.a.forward
    reference.a.forward = lambda x: own(x).relu()
    assert compare(reference, port, (X,)).verdict == "FAIL"
    call = lambda self, x: jax.nn.relu(x @ self.kernel[...] + self.bias[...][None])  # noqa: E731
    port.a = nnx_of(call, kernel=port.a.kernel, bias=port.a.bias)
    assert compare(reference, port, (X,)).verdict == "PASS"


def test_modules_that_run_in_threads_are_refused():
    def call(self, x):
        made = []
        thread = threading.Thread(target=lambda: made.append(caught(self.a, x)))
        thread.start()
        thread.join()
        if isinstance(made[0], Exception):
            raise made[0]
        return self.b(made[0])

    def caught(module, x):
        try:
            return module(x)
        except Exception as error:
            return error

    reference, port = net()
    with pytest.raises(InputError, match="'a' in a thread of its own"):
        compare(torch_of(call, a=reference.a, b=reference.b), port, (X,))


@pytest.mark.parametrize(
    "gradient",
    [
        lambda energy, x: nnx.grad(lambda m, y: m(y), argnums=1)(energy, x),
        lambda energy, x: jax.value_and_grad(jax.jit(lambda y: energy(y)))(x)[1],
        lambda energy, x: jax.jvp(jax.grad(lambda y: energy(y)), (x,), (x,))[0],
    ],
    ids=["nnx", "jitted", "twice"],
)
def test_a_module_that_the_port_differentiates_counts_with_the_call_around_it(gradient):
    def forces(self, x):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            return torch.autograd.grad(self.energy(x), x)[0]

    def verdict(power):
        reference = torch_of(forces, energy=torch_of(lambda self, x: (x**3).sum()))
        energy = nnx_of(lambda self, x: (x**power).sum())
        port = nnx_of(lambda self, x: gradient(self.energy, x), energy=energy)
        return compare(reference, port, (X,))

    assert verdict(3).verdict == "PASS"
    report = verdict(4)
    assert [fault.path for fault in report.faults] == [""]


class Frozen(nnx.Module):
    def __setattr__(self, name, value):
        raise AttributeError(f"frozen {name}")

    def __delattr__(self, name):
        raise AttributeError(f"frozen {name}")

    def __call__(self, x):
        return x * 2


class Kind(type(nnx.Module)):
    def __setattr__(cls, name, value):
        if name == "__call__":
            raise TypeError("sealed")
        super().__setattr__(name, value)


class Sealed(nnx.Module, metaclass=Kind):
    def __getattr__(self, name):
        return name

    def __call__(self, x):
        return x * 2


class Silent(nnx.Module):
    """It keeps nothing that is set, and says nothing."""

    def __setattr__(self, name, value):
        pass

    def __call__(self, x):
        return x * 2


class Known(nnx.Module):
    """It takes no name but its own, and lacks others with an error that `getattr` lets through."""

    def __init__(self):
        self.by = 2

    def __setattr__(self, name, value):
        if name != "by" and not name.startswith("_pytree"):
            raise KeyError(name)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        raise RuntimeError(f"there is no {name}")

    def __call__(self, x):
        return x * self.by


@dataclasses.dataclass(frozen=True, eq=False)
class Values(nnx.Module):
    by: int = 2

    def __call__(self, x):
        return x * self.by


class Closing(type(nnx.Module)):
    """Its classes take and give up nothing once they are made."""

    def __init__(cls, *given):
        super().__init__(*given)
        type.__setattr__(cls, "closed", True)

    def __setattr__(cls, name, value):
        if "closed" in cls.__dict__:
            raise AttributeError(f"closed {name}")
        super().__setattr__(name, value)

    def __delattr__(cls, name):
        raise AttributeError(f"closed {name}")


class Closed(nnx.Module, metaclass=Closing):
    def __call__(self, x):
        return x * 2


class Inherits(Closed):
    pass


class NoValue(nnx.Module):
    """It is equal to nothing, has no hash, no truth and no text."""

    def refuse(self, *_):
        raise TypeError("this is no value")

    __eq__ = __hash__ = __bool__ = __len__ = __repr__ = refuse

    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize(
    "cls",
    [Frozen, Sealed, Silent, Known, Values, Closed, Inherits, NoValue],
    ids=lambda x: x.__name__,
)
def test_classes_that_refuse_attributes_are_watched(cls):
    call = lambda self, x: self.c(x) + 1  # noqa: E731
    own = cls.__dict__.get("__call__")
    for factor, verdict in ((2, "PASS"), (3, "FAIL")):
        reference = torch_of(call, c=torch_of(lambda self, x, by=factor: x * by))
        port = nnx_of(call, c=cls())
        report = compare(reference, port, (X,))
        assert report.verdict == verdict
        assert [fault.path for fault in report.faults] == ["c"] * (factor == 3)
        assert vars(port.c).keys() == vars(cls()).keys()
    assert cls.__dict__.get("__call__") is own


class FrozenTorch(torch.nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.__dict__["frozen"] = True

    def __setattr__(self, name, value):
        if "frozen" in self.__dict__:
            raise AttributeError(f"frozen {name}")
        super().__setattr__(name, value)

    def __delattr__(self, name):
        raise AttributeError(f"frozen {name}")

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize(("scale", "faults"), [(1.0, []), (1.5, ["a"])])
def test_a_called_reference_that_refuses_attributes_is_watched(scale, faults):
    made, port = net(scale)
    reference = FrozenTorch(a=made.a, b=made.b)
    before = dict(vars(reference))
    assert [fault.path for fault in compare(reference, port, (X,)).faults] == faults
    assert vars(reference) == before


@pytest.mark.parametrize("kind", ["grad", "vjp", "jacrev", "jacfwd"])
def test_a_module_that_the_reference_differentiates_by_torch_func(kind):
    def derived(self, x):
        if kind == "vjp":
            return torch.func.vjp(self.energy, x)[1](torch.ones(()).to(x))[0]
        return getattr(torch.func, kind)(self.energy)(x)

    def of(power):
        inner = nnx_of(lambda self, x: (x**power).sum())
        return nnx_of(lambda self, x: jax.grad(lambda y: self.energy(y))(x), energy=inner)

    reference = torch_of(derived, energy=torch_of(lambda self, x: (x**3).sum()))
    assert compare(reference, of(3), (X,)).verdict == "PASS"
    assert compare(reference, of(4), (X,)).verdict == "FAIL"


def test_a_module_that_the_reference_maps_is_refused_in_one_line():
    reference = torch_of(lambda self, x: torch.func.vmap(self.inner)(x), inner=torch.nn.Tanh())
    port = nnx_of(lambda self, x: self.inner(x), inner=nnx_of(lambda self, x: jnp.tanh(x)))
    with pytest.raises(InputError, match=r"under torch\.func\.vmap"):
        compare(reference, port, (X,))


def test_a_module_inside_the_reference_that_refuses_attributes():
    inner = FrozenTorch(**{name: randomise(torch.nn.Linear(4, 4)) for name in "ab"})
    reference = torch_of(lambda self, x: torch.sin(self.inner(x)), inner=inner)
    held = port_of(inner, lambda self, x: self.b(self.a(x)))
    port = nnx_of(lambda self, x: jnp.sin(self.inner(x)), inner=held)
    assert compare(reference, port, (X,)).verdict == "PASS"
    held.a.bias[...] += 1
    (fault,) = compare(reference, port, (X,)).faults
    assert (fault.path, fault.cause) == ("inner.a", "weights_value")


class Powers(torch.nn.Module):
    """A mean of powers with a learned exponent, as retrieval models pool."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return x.clamp(min=1e-6) ** self.p


@pytest.mark.parametrize("p", [3, torch.nn.Parameter(torch.full((1, 4), 3.0))])
def test_an_attribute_p_is_no_dropout(p):
    port = nnx_of(lambda self, x: jnp.maximum(x, 1e-6) ** self.p)
    port.p = nnx.Param(jnp.full((1, 4), 3.0)) if isinstance(p, torch.nn.Parameter) else p
    report = compare(Powers(p), port, (np.abs(X),))
    assert report.verdict == "PASS", report.doubts


def linear_pair():
    layer = torch.nn.Linear(4, 4)
    port = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    port.kernel[...] = jnp.asarray(layer.weight.detach().numpy().T)
    port.bias[...] = jnp.asarray(layer.bias.detach().numpy())
    return layer, port


def test_a_key_is_no_tensor():
    theirs, port = linear_pair()
    port.key = nnx.Variable(jax.random.key(0))
    assert compare(theirs, port, (X,)).verdict == "PASS"


def test_channels_that_are_a_list():
    class Levels(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    theirs, port = linear_pair()
    theirs.__class__ = Levels
    theirs.out_channels = [4, 4]
    assert compare(theirs, port, (X,)).verdict == "PASS"
