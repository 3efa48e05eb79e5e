"""Whatever decides what a reference computes is in its key, or there is none."""

import dataclasses
import enum
import functools
import importlib.util
import logging
import os
import re
import sys
import threading
import time
import types
import uuid
from collections import defaultdict
from datetime import date, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parity.cache import code, key
from parity.cache.code import Unknown
from parity.core.pair import Case

SCALE = 2.0
TABLE = {"relu": F.relu}
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(x):
    return x * SCALE


def closing_over(value):
    return lambda x: x * value()


def unrelated(x):
    return x - 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(3)
        self.linear = torch.nn.Linear(3, 3)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("mask", torch.zeros(3))
        self.factor = 1.0
        self.plain = [torch.nn.Linear(3, 3)]  # not registered
        self.options = {"kinds": ("a", "b")}
        with torch.no_grad():
            for one in (self.linear, self.plain[0]):
                one.weight.fill_(0.5)
                one.bias.fill_(0.25)

    def forward(self, x, more=None):
        return scaled(self.linear(self.norm(x))) * self.factor

    def other(self, x):
        return TABLE["relu"](x)


def key_of(module=None, args=(X,), kwargs=None, method="__call__", layout=None, seed=0):
    module = Net().eval() if module is None else module
    return key.key_of(module, Case("c", args, kwargs=kwargs or {}, torch=method), layout or {},
                      seed, None)  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    return key_of()


def test_an_equal_model_has_the_same_key(plain):
    assert key_of() == plain
    assert key_of(args=(X.copy(),)) == plain


def _add(tensor):
    with torch.no_grad():
        tensor.view(-1)[1] += 1e-6


CHANGES = {
    "weight": lambda net: _add(net.linear.weight),
    "buffer": lambda net: _add(net.mask),
    "weight of a module in a list": lambda net: _add(net.plain[0].weight),
    "sign of a zero": lambda net: net.mask.mul_(-0.0),
    "type": lambda net: net.double(),
    "epsilon": lambda net: setattr(net.norm, "eps", 1e-6),
    "attribute": lambda net: setattr(net, "factor", 1),
    "nested attribute": lambda net: net.options.update(kinds=("a", "c")),
    "dropout": lambda net: setattr(net.drop, "p", 0.4),
    "train mode": lambda net: net.train(),
    "train mode of one": lambda net: net.norm.train(),
    "another class": lambda net: setattr(net, "drop", torch.nn.Identity()),
    "order of axes": lambda net: setattr(
        net.linear, "weight", torch.nn.Parameter(net.linear.weight.detach().t())
    ),
    "shared module": lambda net: net.plain.__setitem__(0, net.linear),
    "forward of one": lambda net: setattr(net, "forward", functools.partial(net.forward, more=1)),
    "attribute that begins as PyTorch's own": lambda net: setattr(net, "_backward_scale", 2.0),
    "another that does": lambda net: setattr(net, "_state_dict_size", 2.0),
    "attribute of a parameter": lambda net: setattr(net.linear.weight, "scale", 2.0),
    "weight norm": lambda net: torch.nn.utils.parametrizations.weight_norm(net.linear),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_is_seen(name, plain):
    net = Net().eval()
    CHANGES[name](net)
    assert key_of(net) != plain


def test_the_class_of_a_tensor_is_seen():
    def key(scale):
        net = Net().eval()
        net.mask = net.mask.as_subclass(type("Own", (torch.Tensor,), {"scale": scale}))
        return key_of(net)

    assert key(1) == key(1)
    assert key(1) != key(2)


ASKED = {
    "value": {"args": (X + 1e-6,)},
    "type": {"args": (X.astype(np.float64),)},
    "strides": {"args": (X.T.copy().T,)},
    "shape": {"args": (X[:1],)},
    "tensor": {"args": (torch.from_numpy(X),)},
    "list": {"args": ([X],)},
    "none": {"args": (X, None)},
    "two": {"args": (X, X)},
    "keyword": {"kwargs": {"more": 0}},
    "float keyword": {"kwargs": {"more": 0.0}},
    "method": {"method": "other"},
    "function": {"method": lambda module, x: module(x)},
    "layout": {"layout": {"*": "move"}},
    "seed": {"seed": 1},
}


def test_a_change_of_what_is_asked_is_seen(plain):
    found = {name: key_of(**asked) for name, asked in ASKED.items()}
    assert len({plain, *found.values()}) == len(ASKED) + 1, found


def test_one_array_given_twice_is_not_two_equal_ones():
    assert key_of(args=(X, X)) != key_of(args=(X, X.copy()))


def test_what_the_code_refers_to_is_seen(plain, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        assert key_of() != plain
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "scaled", unrelated)
        assert key_of() != plain
    with monkeypatch.context() as patch:
        patch.setitem(TABLE, "relu", F.gelu)
        assert key_of() != plain  # whatever method is called: another may call it
    for home, name in ((torch.nn.LayerNorm, "forward"), (F, "layer_norm"), (torch.Tensor, "tanh")):
        with monkeypatch.context() as patch:
            patch.setattr(home, name, lambda *_: None)
            assert key_of() != plain
    monkeypatch.setitem(globals(), "unrelated", scaled)
    assert key_of() == plain


SETTINGS = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "threads": (torch.get_num_threads, torch.set_num_threads, 3),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True,
    ),
    "precision": (
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda value: setattr(torch.backends.mkldnn.matmul, "fp32_precision", value),
        "bf16",
    ),
    "denormal": (lambda: False, torch.set_flush_denormal, True),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_torch_is_seen(name, plain):
    get, change, value = SETTINGS[name]
    before = get()
    change(value)
    try:
        assert key_of() != plain
    finally:
        change(before)
    assert key_of() == plain


def test_a_variable_of_the_libraries_is_seen(plain, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert key_of() != plain


SOURCE = """
import torch

EPS = 1e-5


def helper(x):
    return x + EPS


class Reference(torch.nn.Module):
    def forward(self, x):
        return helper(x)


class Port:
    def __call__(self, x):
        return x
"""


def loaded(folder, text, name="model_file"):
    """A module of that text, as an edit and a new process make it."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.util.sys.modules, name, module)
        exec(compile(text, spec.origin, "exec"), vars(module))
        return key_of(module.Reference().eval())


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x + EPS", "x - EPS", False),
        ("1e-5", "1e-6", False),
        ("return helper(x)", "return helper(helper(x))", False),
        ("        return x\n", "        return -x\n", True),
        ("import torch\n", "import torch\n\n# the port changes, the reference does not\n", True),
        ("    def forward", "    mode = 3\n\n    def forward", False),
    ],
)
def test_an_edit_counts_where_the_reference_gets(old, new, same, tmp_path):
    assert SOURCE.count(old) == 1
    before = loaded(tmp_path, SOURCE)
    assert (loaded(tmp_path, SOURCE.replace(old, new)) == before) is same


class Asks(torch.nn.Module):
    """Calls what it was given."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked

    def forward(self, x):
        return self.asked(x)


def reads(x):
    with open("factor.txt") as file:  # noqa: PTH123
        return x * float(file.read())


def looks_up(x):
    return globals()["scaled"](x)


def imports(x):
    import wave  # loaded by nobody here

    return wave


def imports_beyond(x):
    from .........wave import open as opened  # noqa: TID252

    return opened


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (reads, r"`reads` calls open\(\)"),
        (looks_up, r"`looks_up` calls globals\(\)"),
        (imports, "`import wave` inside a function"),
        (threading.Lock(), "asked is a lock"),
        (torch.Generator(), "asked is a Generator"),
        (np.random.default_rng(), "asked is a Generator"),
        (lambda x: x * perf_counter(), "uses `perf_counter`"),
        (perf_counter, "the reference holds `perf_counter`"),
        (time, "the reference holds `time`"),
        (lambda x, clock=time: x * clock.time(), "holds `time`"),
        (closing_over(uuid.uuid4), "holds `uuid4`"),
        (os.environ.get, "the reference holds `Mapping.get`"),
        (date.today, "the reference holds `date.today`"),
        (datetime, "the reference holds `datetime`"),
        (lambda x: x * datetime.now().second, "uses `datetime`"),
        (imports_beyond, r"`import \.+wave` inside a function: "),
        (lambda x: threading.current_thread() and x, None),
    ],
)
def test_what_nobody_can_tell_has_no_key(asked, why):
    if why is None:
        assert key_of(Asks(asked)) == key_of(Asks(asked))
        return
    with pytest.raises(Unknown, match=why):
        key_of(Asks(asked))


@pytest.mark.parametrize("name", code.OUTSIDE)
def test_code_that_asks_the_outside_has_no_key(name):
    module = importlib.import_module(name)
    asked = types.FunctionType((lambda x: outside and x).__code__, {"outside": module})  # noqa: F821
    with pytest.raises(Unknown, match="uses `outside`"):
        key_of(Asks(asked))


@pytest.mark.parametrize(
    "hooked",
    [
        lambda net: net.norm.register_forward_hook(lambda *_: None),
        lambda net: net.register_forward_pre_hook(lambda *_: None),
        lambda net: torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
    ],
    ids=["after", "before", "global"],
)
def test_hooks_of_the_user_have_no_key(hooked):
    net = Net()
    handle = hooked(net)
    try:
        with pytest.raises(Unknown, match="hook"):
            key_of(net)
    finally:
        handle.remove()


def test_hooks_of_torch_are_part_of_it():
    def normed():
        with pytest.warns(FutureWarning):
            return torch.nn.utils.weight_norm(Net().linear)

    plain = key_of(normed())
    assert key_of(normed()) == plain
    other = normed()
    _add(other.weight_g)
    assert key_of(other) != plain


def test_an_edited_package_is_seen(tmp_path, monkeypatch):
    home = tmp_path / "site-packages" / "pack"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    module = types.ModuleType("pack")
    module.__file__ = str(home / "__init__.py")
    monkeypatch.setitem(importlib.util.sys.modules, "pack", module)
    before = code.package_of("pack")
    monkeypatch.setattr(code, "_stamps", {})  # as in another process
    assert code.package_of("pack") == before
    (home / "inner.py").write_text("x = 1\n")
    monkeypatch.setattr(code, "_stamps", {})
    assert code.package_of("pack.inner") != before


def test_names_typed_into_a_notebook_are_known_by_their_code(plain):
    def typed(text):
        space = {"torch": torch, "__name__": "typed_in"}
        exec(text, space)
        return key_of(space["Reference"]().eval())

    assert typed(SOURCE) == typed(SOURCE)
    assert typed(SOURCE) != typed(SOURCE.replace("1e-5", "1e-6"))


TEXTS = {
    "value of an enum": ("""
class Mode(enum.Enum):
    A = {}

class Reference(torch.nn.Module):
    mode = Mode.A
"""),
    "value of an integer of an enum": ("""
class Mode(enum.IntEnum):
    A = {}

class Reference(torch.nn.Module):
    mode = Mode.A
"""),
    "flag": ("""
class Mode(enum.Flag):
    A, B = {}, 4

class Reference(torch.nn.Module):
    mode = Mode.A | Mode.B
"""),
    "method of an enum": ("""
class Mode(enum.Enum):
    A = 1
    def scale(self):
        return {}

class Reference(torch.nn.Module):
    mode = Mode.A
"""),
    "metaclass": ("""
class Meta(type):
    @property
    def scale(cls):
        return {}

class Config(metaclass=Meta):
    pass

class Reference(torch.nn.Module):
    config = Config
"""),
    "long pattern": ("""
class Reference(torch.nn.Module):
    words = re.compile("a" * 300 + "{}")
"""),
    "flags of a pattern": ("""
class Reference(torch.nn.Module):
    words = re.compile("a" * 300, {} * re.M)
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_what_hides_behind_a_name_is_seen(name, tmp_path):
    def key(number):
        return loaded(tmp_path, "import enum, re, torch\n" + TEXTS[name].format(number))

    assert key(1) == key(1)
    assert key(1) != key(2)


IMPORTS = {
    "relative": ("from .helpers import scale", "inner.helpers", True),
    "relative to the package": ("from . import helpers", "inner.helpers", True),
    "one further up": ("from .. import helpers", "outer.helpers", True),
    "by its whole name": ("import outer.inner.helpers", "inner.helpers", True),
    "by its whole name, and then another": ("import outer.inner.helpers", "outer.helpers", True),
    "another of its name": ("from .helpers import scale", "helpers", False),
    "absolute": ("from helpers import scale", "helpers", True),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_inside_a_function_gives_what_python_would(name, monkeypatch):
    statement, changed, seen = IMPORTS[name]

    def key(number):
        made = {}
        for path in ("helpers", "outer", "outer.helpers", "outer.inner", "outer.inner.helpers"):
            module = made[path] = types.ModuleType(path)
            module.__file__ = f"/somewhere/{path}.py"
            module.scale = number if path.endswith(changed) and (
                "." in changed or path == changed) else 0  # fmt: skip
            monkeypatch.setitem(sys.modules, path, module)
            parent, _, own = path.rpartition(".")
            if parent:
                setattr(made[parent], own, module)
        space = {"__package__": "outer.inner", "__name__": "outer.inner.net"}
        exec(f"def asked(x):\n    {statement}\n    return x", space)
        return key_of(Asks(space["asked"]))

    assert key(1) == key(1)
    assert (key(1) != key(2)) is seen


def test_a_value_set_in_an_installed_module_is_seen(monkeypatch):
    def asked(x):
        return x * np.MYSCALE

    monkeypatch.setattr(np, "MYSCALE", 1, raising=False)
    before = key_of(Asks(asked))
    monkeypatch.setattr(np, "MYSCALE", 2)
    assert key_of(Asks(asked)) != before
    monkeypatch.setattr(np, "MYSCALE", 1)
    monkeypatch.setattr(logging, "_startTime", 0.0)  # other in every process
    assert key_of(Asks(asked)) == before


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Sizes(NamedTuple):
    width: int
    kind: Kind = Kind.ONE


@dataclasses.dataclass
class Config:
    sizes: Sizes
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@functools.lru_cache
def power(x):
    return x**2


class Usual(torch.nn.Module):
    """What models of others hold."""

    def __init__(self):
        super().__init__()
        self.config = Config(Sizes(3), {"a": torch.float32, "b": [slice(1), {1, 2}]})
        self.space = types.SimpleNamespace(size=torch.Size((1, 2)), path=Path("a"))
        self.act = functools.partial(F.gelu, approximate="tanh")
        self.table = defaultdict(list, a=[np.float32(0.5)])
        self.log = logging.getLogger("model")
        self.lstm = torch.nn.LSTM(3, 2)
        self.words = re.compile("a+")

    @functools.cached_property
    def scale(self):
        return power(self.config.sizes.width)

    @staticmethod
    def half(x):
        return x / 2

    @torch.no_grad()
    def forward(self, x):
        return self.half(x) * self.scale


DIFFERENCES = {
    "dataclass": lambda net: setattr(net.config, "sizes", Sizes(4)),
    "enum": lambda net: setattr(net.config, "sizes", Sizes(3, Kind.TWO)),
    "type": lambda net: net.config.more.update(a=torch.float64),
    "set": lambda net: net.config.more["b"][1].add(3),
    "namespace": lambda net: setattr(net.space, "path", Path("b")),
    "partial": lambda net: setattr(net, "act", functools.partial(F.gelu, approximate="none")),
    "dict with a factory": lambda net: setattr(net, "table", defaultdict(dict, net.table)),
    "array scalar": lambda net: net.table["a"].append(1),
    "level": lambda net: setattr(net.lstm, "num_layers", 2),
}


def test_what_models_usually_hold():
    def usual():
        torch.manual_seed(0)
        return Usual()

    plain = key_of(usual())
    assert key_of(usual()) == plain
    for name, change in DIFFERENCES.items():
        net = usual()
        change(net)
        assert key_of(net) != plain, name
